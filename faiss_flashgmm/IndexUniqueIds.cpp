#include <faiss_flashgmm/IndexUniqueIds.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/unique_results.h>
#include <faiss_flashgmm/utils/ParallelGuard.h>

namespace faiss_flashgmm {

namespace {

/// Bytes of results fetched at once by a search.
constexpr size_t kFetchedBytes = 32 << 20;

/// Results from which on threads are worth their start: a GPU finds them
/// faster than one thread drops repeats.
constexpr idx_t kParallelResults = 1 << 14;

struct SameId {
    idx_t operator()(idx_t label) const {
        return label;
    }
};

/** Puts the results of a query in order, best first and those missing last.
 * All of FAISS gives them so but for GPU indexes of cuVS, where more than 256
 * results come in any order.
 */
void put_in_order(
        idx_t k,
        bool similarity,
        float* distances,
        idx_t* labels,
        std::vector<std::pair<float, idx_t>>& scratch) {
    const auto before = [&](const std::pair<float, idx_t>& a,
                            const std::pair<float, idx_t>& b) {
        if (a.second == -1 || b.second == -1) {
            return a.second != -1 && b.second == -1;
        }
        return similarity ? a.first > b.first : a.first < b.first;
    };
    bool in_order = true;
    for (idx_t j = 1; j < k && in_order; j++) {
        in_order = !before(
                {distances[j], labels[j]}, {distances[j - 1], labels[j - 1]});
    }
    if (in_order) {
        return;
    }
    scratch.resize(k);
    for (idx_t j = 0; j < k; j++) {
        scratch[j] = {distances[j], labels[j]};
    }
    std::stable_sort(scratch.begin(), scratch.end(), before);
    for (idx_t j = 0; j < k; j++) {
        std::tie(distances[j], labels[j]) = scratch[j];
    }
}

} // namespace

IndexUniqueIds::IndexUniqueIds(faiss::Index* index, int max_copies)
        : faiss::IndexPreTransform(index), max_copies(max_copies) {
    own_fields = false;
    FAISS_THROW_IF_NOT_FMT(max_copies >= 1, "max_copies is %d", max_copies);
}

void IndexUniqueIds::search(
        idx_t n,
        const float* x,
        idx_t k,
        float* distances,
        idx_t* labels,
        const faiss::SearchParameters* params) const {
    FAISS_THROW_IF_NOT_FMT(n >= 0, "%ld queries", long(n));
    FAISS_THROW_IF_NOT_FMT(k > 0, "k is %ld", long(k));
    FAISS_THROW_IF_NOT_FMT(max_copies >= 1, "max_copies is %d", max_copies);
    const idx_t n_entries = std::max<idx_t>(1, ntotal) * max_copies;
    const idx_t fetch = k >= n_entries ? k : idx_t(max_copies) * (k - 1) + 1;
    const idx_t block = std::clamp<idx_t>(
            kFetchedBytes / (sizeof(float) + sizeof(idx_t)) / fetch,
            1,
            std::max<idx_t>(n, 1));
    const bool similarity = metric_type == faiss::METRIC_INNER_PRODUCT;
    const float no_result = similarity ? std::numeric_limits<float>::lowest()
                                       : std::numeric_limits<float>::max();

    std::vector<float> fetched_distances(block * fetch);
    std::vector<idx_t> fetched_labels(block * fetch);
    for (idx_t i0 = 0; i0 < n; i0 += block) {
        const idx_t count = std::min(block, n - i0);
        IndexPreTransform::search(
                count,
                x + i0 * d,
                fetch,
                fetched_distances.data(),
                fetched_labels.data(),
                params);
        ParallelGuard guard;
#pragma omp parallel if (count * fetch >= kParallelResults)
        {
            std::vector<std::pair<float, idx_t>> scratch;
            SeenIds seen;
#pragma omp for
            for (idx_t i = 0; i < count; i++) {
                guard.run([&] {
                    float* const of_query =
                            fetched_distances.data() + i * fetch;
                    idx_t* const labels_of_query =
                            fetched_labels.data() + i * fetch;
                    put_in_order(
                            fetch,
                            similarity,
                            of_query,
                            labels_of_query,
                            scratch);
                    unique_topk(
                            fetch,
                            of_query,
                            labels_of_query,
                            SameId(),
                            no_result,
                            k,
                            distances + (i0 + i) * k,
                            labels + (i0 + i) * k,
                            seen);
                });
            }
        }
        guard.rethrow();
    }
}

void IndexUniqueIds::range_search(
        idx_t n,
        const float* x,
        float radius,
        faiss::RangeSearchResult* result,
        const faiss::SearchParameters* params) const {
    IndexPreTransform::range_search(n, x, radius, result, params);
    unique_range(*result, SameId(), metric_type == faiss::METRIC_INNER_PRODUCT);
}

void IndexUniqueIds::search_and_reconstruct(
        idx_t,
        const float*,
        idx_t,
        float*,
        idx_t*,
        float*,
        const faiss::SearchParameters*) const {
    FAISS_THROW_MSG(
            "IndexUniqueIds does not offer search_and_reconstruct: search, "
            "then reconstruct");
}

#if FAISS_FLASHGMM_HAS_SEARCH1
void IndexUniqueIds::search1(
        const float*,
        faiss::ResultHandler&,
        faiss::SearchParameters*) const {
    FAISS_THROW_MSG("IndexUniqueIds does not offer search1");
}
#endif

} // namespace faiss_flashgmm
