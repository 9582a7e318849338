#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include <faiss_flashgmm/compat.h>

#if FAISS_FLASHGMM_HAS_SEARCH1

#include <faiss/impl/ResultHandler.h>

#include <faiss_flashgmm/unique_results.h>

namespace faiss_flashgmm {

/** Gathers the k best different ids of one query after the other, each with its
 * best distance.
 *
 * What it gets more than a search for k entries costs most: each result taken
 * is a branch that the processor has not foreseen, and stalls reading ahead.
 * So the threshold has to be close, and repeats must not keep it away.
 */
class UniqueCollector : public faiss::ResultHandler {
   public:
    /// @param similarity    whether a larger distance is better
    UniqueCollector(size_t k, bool similarity)
            : k_(k), sign_(similarity ? -1.f : 1.f) {}

    virtual void begin() = 0;

    /// @param distances, labels     size k, best first; label -1: none
    virtual void end(float* distances, idx_t* labels) = 0;

   protected:
    void take_all() {
        threshold = sign_ * std::numeric_limits<float>::max();
    }

    /// Writes what missing results look like behind the first `size`.
    void fill(size_t size, float* distances, idx_t* labels) const {
        std::fill(
                distances + size,
                distances + k_,
                sign_ * std::numeric_limits<float>::max());
        std::fill(labels + size, labels + k_, idx_t(-1));
    }

    const size_t k_;
    const float sign_;
};

/// For small k: keeps results sorted, so that the threshold is that of the k
/// best so far. A result takes k steps.
class UniqueInsertion final : public UniqueCollector {
   public:
    UniqueInsertion(size_t k, bool similarity)
            : UniqueCollector(k, similarity), losses_(k), ids_(k) {}

    void begin() override {
        size_ = 0;
        take_all();
    }

    /// Returns whether the threshold may have changed.
    bool add_result(float distance, idx_t id) override {
        size_ = insert_unique(
                sign_ * distance, id, k_, size_, losses_.data(), ids_.data());
        if (size_ < k_) {
            return false;
        }
        threshold = sign_ * losses_.back();
        return true;
    }

    void end(float* distances, idx_t* labels) override {
        for (size_t i = 0; i < size_; i++) {
            distances[i] = sign_ * losses_[i];
            labels[i] = ids_[i];
        }
        fill(size_, distances, labels);
    }

   private:
    std::vector<float> losses_; ///< the first size_, best first
    std::vector<idx_t> ids_;
    size_t size_ = 0;
};

/// For large k: gathers somewhat more than k before it looks for the best.
class UniqueBuffer final : public UniqueCollector {
   public:
    /// @param most      ids that there are at all
    UniqueBuffer(size_t k, size_t most, bool similarity)
            : UniqueCollector(k, similarity),
              results_(std::min(k, most) * 5 / 4 + 16),
              best_(std::bit_ceil(4 * results_.size())),
              shift_(64 - std::countr_zero(best_.size())) {}

    void begin() override {
        size_ = n_stale_ = 0;
        forget_ids();
        take_all();
    }

    /// Returns whether the threshold has changed.
    bool add_result(float distance, idx_t id) override {
        const float loss = sign_ * distance;
        if (!is_best_of(id, loss)) {
            return false;
        }
        results_[size_++] = {loss, id};
        if (size_ < results_.size()) {
            return false;
        }
        drop_stale();
        if (size_ <= k_) {
            return false;
        }
        keep_best();
        return true;
    }

    void end(float* distances, idx_t* labels) override {
        drop_stale();
        if (size_ > k_) {
            keep_best();
        }
        std::sort(results_.begin(), results_.begin() + size_);
        for (size_t i = 0; i < size_; i++) {
            distances[i] = sign_ * results_[i].loss;
            labels[i] = results_[i].id;
        }
        fill(size_, distances, labels);
    }

   private:
    struct Result {
        float loss;
        idx_t id;

        bool operator<(const Result& other) const {
            return loss < other.loss || (loss == other.loss && id < other.id);
        }
    };

    /// The least loss of an id so far. Of another epoch: none.
    struct Best {
        idx_t id = 0;
        float loss = 0;
        uint32_t epoch = 0;
    };

    void forget_ids() {
        epoch_++;
        n_ids_ = 0;
    }

    Best& find(idx_t id) {
        // Fibonacci hashing: ids in sequence, or multiples, spread well
        size_t i = (uint64_t(id) * 0x9E3779B97F4A7C15u) >> shift_;
        while (best_[i].epoch == epoch_ && best_[i].id != id) {
            i = (i + 1) & (best_.size() - 1);
        }
        return best_[i];
    }

    bool is_best_of(idx_t id, float loss) {
        Best& best = find(id);
        if (best.epoch != epoch_) {
            best = {id, loss, epoch_};
            n_ids_++;
            return true;
        }
        if (best.loss <= loss) {
            return false;
        }
        best.loss = loss;
        n_stale_++;
        return true;
    }

    /// Drops results of which a better copy has come.
    void drop_stale() {
        if (n_stale_ > 0) {
            const auto end = std::remove_if(
                    results_.begin(),
                    results_.begin() + size_,
                    [&](const Result& result) {
                        return find(result.id).loss < result.loss;
                    });
            size_ = end - results_.begin();
            n_stale_ = 0;
        }
    }

    void keep_best() {
        const auto last = results_.begin() + k_ - 1;
        std::nth_element(results_.begin(), last, results_.begin() + size_);
        size_ = k_;
        threshold = sign_ * last->loss;
        if (n_ids_ >= best_.size() / 4) {
            forget_ids();
            for (size_t i = 0; i < size_; i++) {
                is_best_of(results_[i].id, results_[i].loss);
            }
        }
    }

    std::vector<Result> results_;
    size_t size_ = 0;
    size_t n_stale_ = 0; ///< at most as many results have a better copy
    std::vector<Best> best_;
    int shift_;
    size_t n_ids_ = 0;
    uint32_t epoch_ = 0;
};

/// @param most      ids that there are at all
inline std::unique_ptr<UniqueCollector> make_unique_collector(
        size_t k,
        size_t most,
        bool similarity) {
    constexpr size_t kInsertion = 32; // measured: then a buffer is faster
    if (k <= kInsertion) {
        return std::make_unique<UniqueInsertion>(k, similarity);
    }
    return std::make_unique<UniqueBuffer>(k, most, similarity);
}

} // namespace faiss_flashgmm

#endif
