#pragma once

#include <bit>
#include <cstdint>

namespace faiss_flashgmm {

/// 1 for a NaN or an infinity, else 0, in a form that compilers vectorize.
inline uint32_t is_not_finite(float value) {
    constexpr uint32_t kExponent = 0x7f800000;
    return (std::bit_cast<uint32_t>(value) & kExponent) == kExponent;
}

/// Index of the first NaN or infinity; n if there is none.
inline int64_t first_not_finite(int64_t n, const float* x) {
    constexpr int64_t kBlock = 1024;
    for (int64_t begin = 0; begin < n; begin += kBlock) {
        const int64_t end = n - begin < kBlock ? n : begin + kBlock;
        uint32_t bad = 0;
        for (int64_t i = begin; i < end; i++) {
            bad |= is_not_finite(x[i]);
        }
        for (int64_t i = begin; bad && i < end; i++) {
            if (is_not_finite(x[i])) {
                return i;
            }
        }
    }
    return n;
}

} // namespace faiss_flashgmm
