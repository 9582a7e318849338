#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <faiss_flashgmm/compat.h>
#include <faiss_flashgmm/unique_results.h>

// The k best different ids of each of n queries that are searched together, by
// losses of 16 bits (less is better), each id with its least loss. Losses not
// below the threshold of a query change nothing.
namespace faiss_flashgmm {

/// Best first.
struct UniqueBest {
    std::span<const uint16_t> losses;
    std::span<const idx_t> ids;
};

constexpr uint16_t kNoThreshold = std::numeric_limits<uint16_t>::max();

/// For small k: keeps results sorted. One more takes k steps.
class SortedBest {
   public:
    SortedBest(size_t n, size_t k)
            : k_(k), losses_(n * k), ids_(n * k), sizes_(n) {}

    uint16_t threshold(size_t query) const {
        return sizes_[query] < k_ ? kNoThreshold : losses_[query * k_ + k_ - 1];
    }

    void add(size_t query, uint16_t loss, idx_t id) {
        sizes_[query] = insert_unique(
                loss,
                id,
                k_,
                sizes_[query],
                &losses_[query * k_],
                &ids_[query * k_]);
    }

    UniqueBest best(size_t query) const {
        return {{&losses_[query * k_], sizes_[query]},
                {&ids_[query * k_], sizes_[query]}};
    }

   private:
    const size_t k_;
    std::vector<uint16_t> losses_;
    std::vector<idx_t> ids_;
    std::vector<size_t> sizes_;
};

/** For large k: gathers up to 3k results before it looks for the best. Sorting
 * all by counting, and then dropping repeats up to the k-th id, takes less than
 * to find repeats first or to partition: there is no branch to mispredict.
 */
class BufferedBest {
   public:
    /// @param k     1 to kMost
    BufferedBest(size_t n, size_t k)
            : k_(k),
              capacity_(3 * k),
              losses_(n * capacity_),
              ids_(n * capacity_),
              sizes_(n),
              thresholds_(n, kNoThreshold),
              order_(capacity_),
              by_low_digit_(capacity_),
              kept_losses_(k),
              kept_ids_(k),
              slots_(std::bit_ceil(8 * k)),
              shift_(64 - std::countr_zero(slots_.size())) {}

    /// Positions are of 16 bits.
    static constexpr size_t kMost = 16384;

    uint16_t threshold(size_t query) const {
        return thresholds_[query];
    }

    void add(size_t query, uint16_t loss, idx_t id) {
        size_t& size = sizes_[query];
        if (size == capacity_) {
            keep_best(query);
            if (loss >= thresholds_[query]) {
                return;
            }
        }
        losses_[query * capacity_ + size] = loss;
        ids_[query * capacity_ + size] = id;
        size++;
    }

    UniqueBest best(size_t query) {
        keep_best(query);
        return {{&losses_[query * capacity_], sizes_[query]},
                {&ids_[query * capacity_], sizes_[query]}};
    }

   private:
    static constexpr int kDigitBits = 10;
    static constexpr unsigned kLargestDigit = (1 << kDigitBits) - 1;

    /** Sorts positions by digits of what is there.
     *
     * @param position  of r < n: the r-th before, of which equal digits keep
     *                  the order
     * @param digit     of a position, at most `largest`
     */
    template <class Position, class Digit>
    void distribute(
            size_t n,
            unsigned largest,
            const Position& position,
            const Digit& digit,
            std::vector<uint16_t>& sorted) {
        std::fill_n(starts_, largest + 2, 0);
        for (size_t i = 0; i < n; i++) {
            starts_[digit(i) + 1]++;
        }
        for (unsigned d = 0; d < largest; d++) {
            starts_[d + 1] += starts_[d];
        }
        for (size_t r = 0; r < n; r++) {
            const uint16_t i = position(r);
            sorted[starts_[digit(i)]++] = i;
        }
    }

    /// order_: positions in losses, least loss first; a radix sort.
    void sort(const uint16_t* losses, size_t n) {
        uint16_t low = losses[0], high = low;
        for (size_t i = 0; i < n; i++) {
            low = std::min(low, losses[i]);
            high = std::max(high, losses[i]);
        }
        const unsigned range = high - low;
        distribute(
                n,
                std::min(range, kLargestDigit),
                [](size_t r) { return r; },
                [&](size_t i) { return (losses[i] - low) & kLargestDigit; },
                order_);
        if (range > kLargestDigit) {
            order_.swap(by_low_digit_);
            distribute(
                    n,
                    range >> kDigitBits,
                    [&](size_t r) { return by_low_digit_[r]; },
                    [&](size_t i) { return (losses[i] - low) >> kDigitBits; },
                    order_);
        }
    }

    /// Leaves the k best different ids, sorted.
    void keep_best(size_t query) {
        const size_t n = sizes_[query];
        if (n == 0) {
            return;
        }
        uint16_t* losses = &losses_[query * capacity_];
        idx_t* ids = &ids_[query * capacity_];
        sort(losses, n);
        std::fill(slots_.begin(), slots_.end(), 0);
        size_t kept = 0;
        for (size_t r = 0; r < n && kept < k_; r++) {
            const uint16_t i = order_[r];
            kept_losses_[kept] = losses[i];
            kept_ids_[kept] = ids[i];
            // Fibonacci hashing: ids in sequence, or multiples, spread well
            size_t at = (uint64_t(ids[i]) * 0x9E3779B97F4A7C15u) >> shift_;
            while (slots_[at] != 0 && kept_ids_[slots_[at] - 1] != ids[i]) {
                at = (at + 1) & (slots_.size() - 1);
            }
            const bool is_new = slots_[at] == 0;
            slots_[at] = is_new ? uint16_t(kept + 1) : slots_[at];
            kept += is_new;
        }
        std::copy_n(kept_losses_.begin(), kept, losses);
        std::copy_n(kept_ids_.begin(), kept, ids);
        sizes_[query] = kept;
        if (kept == k_) {
            thresholds_[query] = losses[k_ - 1];
        }
    }

    const size_t k_;
    const size_t capacity_;
    std::vector<uint16_t> losses_;
    std::vector<idx_t> ids_;
    std::vector<size_t> sizes_;
    std::vector<uint16_t> thresholds_;
    std::vector<uint16_t> order_, by_low_digit_;
    uint16_t starts_[kLargestDigit + 2];
    std::vector<uint16_t> kept_losses_;
    std::vector<idx_t> kept_ids_;
    std::vector<uint16_t> slots_; ///< position among those kept, plus 1
    const int shift_;
};

} // namespace faiss_flashgmm
