#include <faiss_flashgmm/unique_fetch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <omp.h>

#include <faiss/IndexIVFFastScan.h>

#include <faiss_flashgmm/list_entries.h>
#include <faiss_flashgmm/unique_results.h>
#include <faiss_flashgmm/utils/ParallelGuard.h>

namespace faiss_flashgmm {

namespace {

/// Bytes of results fetched at once.
constexpr idx_t kFetchedBytes = 32 << 20;

/// Queries a thread fetched at once. FastScan scans a list for several of them,
/// and gets slower with more than fit into its caches.
constexpr idx_t kBlock = 128;
constexpr idx_t kFastScanBlock = 1024;

/// Of as many queries one may need more entries than are fetched.
constexpr idx_t kOneIn = 512;

/// Entries that hold k different ids for most queries, if the vectors near them
/// have as many copies as others: the mean and 3 standard deviations.
idx_t likely_entries(idx_t k, double copies_a_vector) {
    const double mean = double(k) * copies_a_vector;
    return k + idx_t(std::ceil(mean + 3 * std::sqrt(mean)));
}

/// fetch_unique(), block by block.
class UniqueFetcher {
   public:
    UniqueFetcher(
            const faiss::IndexIVF& ivf,
            bool store_pairs,
            idx_t k,
            float* distances,
            idx_t* labels,
            const FetchEntries& fetch)
            : id_of_{ivf, store_pairs},
              fast_scan_(dynamic_cast<const faiss::IndexIVFFastScan*>(&ivf)),
              no_result_(
                      ivf.metric_type == faiss::METRIC_INNER_PRODUCT
                              ? std::numeric_limits<float>::lowest()
                              : std::numeric_limits<float>::max()),
              k_(k),
              distances_(distances),
              labels_(labels),
              fetch_(fetch) {}

    /// How many queries to fetch `entries` of at once.
    idx_t block(idx_t entries) const {
        const idx_t most =
                kFetchedBytes / idx_t(sizeof(float) + sizeof(idx_t)) / entries;
        return std::clamp<idx_t>(
                most,
                1,
                (fast_scan_ ? kFastScanBlock : kBlock) * omp_get_max_threads());
    }

    /** Fetches entries of queries, and keeps the first of each id.
     *
     * @param needed    output, size count: entries up to the k-th id; that of
     *                  a query which finds fewer although there may be more is
     *                  0
     */
    void run(idx_t i0, idx_t count, idx_t entries, bool again, idx_t* needed) {
        fetched_distances_.resize(count * entries);
        fetched_labels_.resize(count * entries);
        fetch_(i0,
               count,
               entries,
               fetched_distances_.data(),
               fetched_labels_.data(),
               again);
        // Searches of other codecs are called by each thread.
        ParallelGuard guard;
#pragma omp parallel if (fast_scan_ && count >= kBlock)
        guard.run([&] {
            SeenIds seen;
            const int n_threads = omp_get_num_threads();
            const idx_t rank = omp_get_thread_num();
            for (idx_t i = count * rank / n_threads;
                 i < count * (rank + 1) / n_threads;
                 i++) {
                const idx_t from = i * entries;
                const UniqueTopk found = unique_topk(
                        entries,
                        fetched_distances_.data() + from,
                        fetched_labels_.data() + from,
                        id_of_,
                        no_result_,
                        k_,
                        distances_ + (i0 + i) * k_,
                        labels_ + (i0 + i) * k_,
                        seen);
                const bool were_all = fetched_labels_[from + entries - 1] == -1;
                needed[i] = found.kept < size_t(k_) && !were_all
                        ? 0
                        : idx_t(found.read);
            }
        });
        guard.rethrow();
    }

   private:
    IdOfLabel id_of_;
    bool fast_scan_;
    float no_result_;
    idx_t k_;
    float* distances_;
    idx_t* labels_;
    const FetchEntries& fetch_;
    std::vector<float> fetched_distances_;
    std::vector<idx_t> fetched_labels_;
};

} // namespace

void fetch_unique(
        const faiss::IndexIVF& ivf,
        const EntryCounts& counts,
        bool store_pairs,
        idx_t n,
        idx_t k,
        float* distances,
        idx_t* labels,
        const FetchEntries& fetch) {
    const idx_t n_entries = counts.vectors + counts.copies;
    const idx_t enough = k >= n_entries
            ? n_entries
            : std::min(n_entries, counts.max_copies * (k - 1) + 1);
    idx_t tried = std::min(
            enough,
            likely_entries(k, double(counts.copies) / double(counts.vectors)));

    UniqueFetcher fetcher(ivf, store_pairs, k, distances, labels, fetch);
    std::vector<idx_t> needed;
    for (idx_t i0 = 0, count; i0 < n; i0 += count) {
        count = std::min(fetcher.block(tried), n - i0);
        needed.resize(count);
        fetcher.run(i0, count, tried, false, needed.data());
        const idx_t n_short =
                std::count(needed.begin(), needed.end(), idx_t(0));
        if (n_short > 0 && tried < enough) {
            // Many of them are searched faster together with their neighbors.
            const idx_t step = n_short > count / 8 ? fetcher.block(enough) : 1;
            for (idx_t i = 0; i < count; i += step) {
                if (step > 1 || needed[i] == 0) {
                    fetcher.run(
                            i0 + i,
                            std::min(step, count - i),
                            enough,
                            true,
                            needed.data() + i);
                }
            }
        }
        if (count >= kBlock) {
            const auto most = needed.end() - 1 - count / kOneIn;
            std::nth_element(needed.begin(), most, needed.end());
            tried = std::clamp(*most, std::min(k, enough), enough);
        }
    }
}

} // namespace faiss_flashgmm
