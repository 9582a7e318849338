#pragma once

#include <memory>

#include <faiss/Index.h>
#include <faiss/clone_index.h>

namespace faiss_flashgmm {

/** Copies an index with all it holds; multi-assign indexes, IndexUniqueIds and
 * IndexFlatGMM stay what they are, with policy, mixture and counts.
 * faiss::clone_index makes stock indexes of them.
 *
 * Copies everything that write_index() can write, also what the Cloner of
 * FAISS refuses (FastScan lists and IndexRefine before 1.8). Inverted lists on
 * disk are shared with the copy, as after reading a file.
 */
struct MultiAssignCloner : faiss::Cloner {
    faiss::Index* clone_Index(const faiss::Index* index) override;
};

std::unique_ptr<faiss::Index> clone_index(const faiss::Index& index);

} // namespace faiss_flashgmm
