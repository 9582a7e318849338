#pragma once

#include <faiss/IndexPreTransform.h>

#include <faiss_flashgmm/compat.h>

namespace faiss_flashgmm {

/** Drops repeated ids from the results of any index: one that was filled
 * twice, a stock file of a multi-assign index, a GPU copy of one, shards of
 * either.
 *
 * It is an IndexPreTransform, with or without transforms, so that AutoTune and
 * extract_index_ivf see through it. ntotal is that of the inner index, and
 * searches with reconstruction, which FAISS does by place, are refused.
 */
struct IndexUniqueIds : faiss::IndexPreTransform {
    /// The most entries of one id in the inner index. A search for k fetches
    /// max_copies * (k - 1) + 1 results, enough for k different ids; more
    /// copies than this lose results, but repeat none.
    int max_copies = 2;

    IndexUniqueIds() = default;

    /// Does not own `index` unless own_fields is set.
    explicit IndexUniqueIds(faiss::Index* index, int max_copies = 2);

    /// Of the entries of an id the best is kept.
    void search(
            idx_t n,
            const float* x,
            idx_t k,
            float* distances,
            idx_t* labels,
            const faiss::SearchParameters* params = nullptr) const override;

    void range_search(
            idx_t n,
            const float* x,
            float radius,
            faiss::RangeSearchResult* result,
            const faiss::SearchParameters* params = nullptr) const override;

    /// Throws.
    void search_and_reconstruct(
            idx_t n,
            const float* x,
            idx_t k,
            float* distances,
            idx_t* labels,
            float* recons,
            const faiss::SearchParameters* params = nullptr) const override;

#if FAISS_FLASHGMM_HAS_SEARCH1
    /// Throws: the handler would see the repeats.
    void search1(
            const float* x,
            faiss::ResultHandler& handler,
            faiss::SearchParameters* params = nullptr) const override;
#endif
};

} // namespace faiss_flashgmm
