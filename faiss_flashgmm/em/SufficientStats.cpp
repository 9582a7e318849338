#include <faiss_flashgmm/em/SufficientStats.h>

#include <algorithm>

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

} // namespace faiss_flashgmm
