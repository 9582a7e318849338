#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace faiss_flashgmm {

/** What the M-step needs to know of the rows, in conditioned units.
 *
 * Every entry is a sum over rows, so statistics of chunks, devices and
 * machines add up. With w the row weight and r the responsibility:
 *
 *     counts[k]  = sum_i w_i r_ik
 *     squared[k] = sum_i w_i r_ik |x_i - mu_k|^2
 *     sums[k]    = sum_i w_i r_ik x_i               (d numbers)
 *
 * All of it is one flat buffer: the only thing a Communicator carries.
 */
class SufficientStats {
   public:
    /// Sums over rows that are not per component.
    enum Scalar {
        kWeight,        ///< sum of w
        kLogLikelihood, ///< sum of w log Z, conditioned units, natural log
        kObjective,     ///< sum of w |x - mu_best|^2, best = most responsible
        kDroppedMass,   ///< sum of w * (share of Z that was left out)
        kRows,          ///< rows seen
        kPairs,         ///< (row, component) pairs that entered the sums
        kNumScalars
    };

    SufficientStats() = default;
    SufficientStats(int64_t k, int64_t d);

    int64_t k() const {
        return k_;
    }
    int64_t d() const {
        return d_;
    }

    void clear();

    std::span<double> counts() {
        return {buffer_.data(), size_t(k_)};
    }
    std::span<double> squared() {
        return {buffer_.data() + k_, size_t(k_)};
    }
    std::span<double> sums() {
        return {buffer_.data() + 2 * k_, size_t(k_ * d_)};
    }
    double& scalar(Scalar s) {
        return buffer_[k_ * (d_ + 2) + s];
    }

    std::span<const double> counts() const {
        return {buffer_.data(), size_t(k_)};
    }
    std::span<const double> squared() const {
        return {buffer_.data() + k_, size_t(k_)};
    }
    std::span<const double> sums() const {
        return {buffer_.data() + 2 * k_, size_t(k_ * d_)};
    }
    double scalar(Scalar s) const {
        return buffer_[k_ * (d_ + 2) + s];
    }

    /// counts | squared | sums | scalars: k (d + 2) + kNumScalars numbers
    std::span<double> flat() {
        return buffer_;
    }

   private:
    int64_t k_ = 0;
    int64_t d_ = 0;
    std::vector<double> buffer_;
};

} // namespace faiss_flashgmm
