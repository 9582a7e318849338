#pragma once

#include <functional>

#include <faiss/IndexIVF.h>

#include <faiss_flashgmm/IVFMultiAssign.h>
#include <faiss_flashgmm/compat.h>

namespace faiss_flashgmm {

/** Finds the k best entries of `count` queries from `i0` on, as a search of a
 * stock index, repeats included.
 *
 * @param again     these queries were searched before
 */
using FetchEntries = std::function<void(
        idx_t i0,
        idx_t count,
        idx_t k,
        float* distances,
        idx_t* labels,
        bool again)>;

/** The k best different ids of n queries, each with its best distance.
 *
 * Fetches as many entries as hold k ids for most queries, by how many copies
 * there are and, in later blocks, by what earlier ones needed, and for the
 * others as many as hold k ids in any case.
 *
 * @param counts        of the index, with copies
 * @param store_pairs   whether labels name entries instead of ids
 */
void fetch_unique(
        const faiss::IndexIVF& ivf,
        const EntryCounts& counts,
        bool store_pairs,
        idx_t n,
        idx_t k,
        float* distances,
        idx_t* labels,
        const FetchEntries& fetch);

} // namespace faiss_flashgmm
