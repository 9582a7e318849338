#include <faiss_flashgmm/unique_scan.h>

#if FAISS_FLASHGMM_HAS_SEARCH1

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include <faiss/impl/AuxIndexStructures.h>
#include <faiss/impl/IDSelector.h>
#include <faiss/impl/ResultHandler.h>

#include <faiss_flashgmm/ivf_checks.h>
#include <faiss_flashgmm/unique_results.h>

namespace faiss_flashgmm {

namespace {

/// Gathers the best k different ids of a query.
class UniqueBuffer : public faiss::ResultHandler {
   public:
    /// @param most      ids that there are at all
    UniqueBuffer(size_t k, size_t most, bool similarity)
            : k_(k),
              sign_(similarity ? -1.f : 1.f),
              results_(2 * std::min(k, most) + 64) {}

    void begin() {
        size_ = 0;
        threshold = sign_ * std::numeric_limits<float>::max();
    }

    /// Returns whether the threshold has changed.
    bool add_result(float distance, idx_t id) override {
        results_[size_++] = {sign_ * distance, id};
        if (size_ < results_.size()) {
            return false;
        }
        keep_best();
        return true;
    }

    void end(float* distances, idx_t* labels) {
        keep_best();
        std::sort(results_.begin(), results_.begin() + size_);
        for (size_t i = 0; i < size_; i++) {
            distances[i] = sign_ * results_[i].distance;
            labels[i] = results_[i].id;
        }
        std::fill(
                distances + size_,
                distances + k_,
                sign_ * std::numeric_limits<float>::max());
        std::fill(labels + size_, labels + k_, idx_t(-1));
    }

   private:
    struct Result {
        float distance; ///< less is better
        idx_t id;

        bool operator<(const Result& other) const {
            return distance < other.distance ||
                    (distance == other.distance && id < other.id);
        }
    };

    void keep_best() {
        seen_.reset(size_);
        size_t kept = 0;
        for (size_t i = 0; i < size_; i++) {
            const size_t first = seen_.insert(results_[i].id, kept);
            if (first == kept) {
                results_[kept++] = results_[i];
            } else if (results_[i] < results_[first]) {
                results_[first] = results_[i];
            }
        }
        size_ = kept;
        if (size_ > k_) {
            const auto last = results_.begin() + k_ - 1;
            std::nth_element(results_.begin(), last, results_.begin() + size_);
            size_ = k_;
            threshold = sign_ * last->distance;
        }
    }

    size_t k_;
    float sign_;
    std::vector<Result> results_;
    size_t size_ = 0;
    SeenIds seen_;
};

} // namespace

bool can_scan_unique(
        const faiss::IndexIVF& ivf,
        bool store_pairs,
        const faiss::IVFSearchParameters* params) {
    const size_t max_codes = params ? params->max_codes : ivf.max_codes;
    if (store_pairs || max_codes != 0 || ivf.parallel_mode != 0 ||
        ivf.invlists->use_iterator) {
        return false;
    }
    if (!params) {
        return true;
    }
    const auto* range =
            dynamic_cast<const faiss::IDSelectorRange*>(params->sel);
    return !(range && range->assume_sorted) && !params->inverted_list_context &&
            !params->ensure_topk_full && params->max_lists_num == 0;
}

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
        faiss::IndexIVFStats* stats) {
    const idx_t nprobe = probes_a_query(ivf, params);
    const std::unique_ptr<faiss::InvertedListScanner> scanner(
            ivf.get_InvertedListScanner(
                    false, params ? params->sel : nullptr, params));
    UniqueBuffer buffer(
            k, ivf.ntotal, ivf.metric_type == faiss::METRIC_INNER_PRODUCT);
    size_t n_lists = 0;
    for (idx_t i = 0; i < n; i++) {
        scanner->set_query(x + i * ivf.d);
        buffer.begin();
        for (idx_t j = i * nprobe; j < (i + 1) * nprobe; j++) {
            const idx_t list = keys[j];
            const size_t size = list < 0 ? 0 : ivf.invlists->list_size(list);
            if (size == 0) {
                continue;
            }
            scanner->set_list(list, coarse_dis[j]);
            faiss::InvertedLists::ScopedCodes codes(ivf.invlists, list);
            faiss::InvertedLists::ScopedIds ids(ivf.invlists, list);
            scanner->scan_codes(size, codes.get(), ids.get(), buffer);
            n_lists++;
        }
        buffer.end(distances + i * k, labels + i * k);
        faiss::InterruptCallback::check();
    }
    if (!stats) {
        stats = &faiss::indexIVF_stats;
    }
    stats->nq += n;
    stats->nlist += n_lists;
    stats->ndis += buffer.stats.scan_cnt;
    stats->nheap_updates += buffer.stats.nheap_updates;
}

} // namespace faiss_flashgmm

#endif
