#include <faiss_flashgmm/em/SufficientStats.h>

#include <algorithm>

#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/memory.h>

namespace faiss_flashgmm {

SufficientStats::SufficientStats(int64_t k, int64_t d) : k_(k), d_(d) {
    resize_or_throw(
            buffer_,
            uint64_t(k) * (d + 2) + kNumScalars,
            "the sufficient statistics");
}

void SufficientStats::clear() {
    std::fill(buffer_.begin(), buffer_.end(), 0.0);
}

void SufficientStats::add(const SufficientStats& other) {
    FLASHGMM_THROW_IF_NOT_FMT(
            other.k_ == k_ && other.d_ == d_,
            "statistics of shape (%ld, %ld) added to (%ld, %ld)",
            long(other.k_),
            long(other.d_),
            long(k_),
            long(d_));
    for (size_t i = 0; i < buffer_.size(); i++) {
        buffer_[i] += other.buffer_[i];
    }
}

} // namespace faiss_flashgmm
