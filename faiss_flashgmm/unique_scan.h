#pragma once

#include <faiss/IndexIVF.h>

#include <faiss_flashgmm/compat.h>

#if FAISS_FLASHGMM_HAS_SEARCH1

namespace faiss_flashgmm {

/// Whether scan_unique() does what search_preassigned() would with these.
bool can_scan_unique(
        const faiss::IndexIVF& ivf,
        bool store_pairs,
        const faiss::IVFSearchParameters* params);

/** The k best different ids of each query, as search_preassigned() of an index
 * without repeats. Scans with the scanner of the codec on the calling thread.
 *
 * A search that fetches enough entries to hold k ids keeps them in a heap, at
 * about twice the price of k. Here a UniqueCollector gathers k.
 *
 * @param keys      size n * nprobe, nprobe at most nlist
 */
void scan_unique(
        const faiss::IndexIVF& ivf,
        idx_t n,
        const float* x,
        idx_t k,
        const idx_t* keys,
        const float* coarse_dis,
        float* distances,
        idx_t* labels,
        const faiss::IVFSearchParameters* params,
        faiss::IndexIVFStats* stats);

} // namespace faiss_flashgmm

#endif
