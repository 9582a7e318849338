#pragma once

#include <string>

#include <faiss/AutoTune.h>

namespace faiss_flashgmm {

/** faiss::ParameterSpace that reaches everything inside an index, and knows the
 * settings of multi-assign indexes.
 *
 * Beyond those of FAISS, set_index_parameter knows
 * - `assign_<field>`: a number in MultiAssign, such as assign_tau; applies to
 *   vectors added later,
 * - `max_copies` of IndexUniqueIds.
 * Parameters reach multi-assign indexes below IndexIDMap, IndexRefine,
 * IndexShards and IndexReplicas as well.
 */
struct ParameterSpace : faiss::ParameterSpace {
    /// The parameters that change a search: nprobe and what else FAISS knows
    /// of the parts of the index.
    void initialize(const faiss::Index* index) override;

    /// Throws faiss::FaissException if no part of the index has the parameter,
    /// or not that value.
    void set_index_parameter(
            faiss::Index* index,
            const std::string& name,
            double value) const override;
};

} // namespace faiss_flashgmm
