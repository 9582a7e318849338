#pragma once

#include <bit>
#include <cstdint>

namespace faiss_flashgmm {

/// IEEE binary16 to float, exactly; infinity and NaN stay what they are.
inline float half_to_float(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000) << 16;
    const uint32_t magnitude = half & 0x7fff;
    if (magnitude >= 0x7c00) {
        return std::bit_cast<float>(
                sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    }
    // Moved into place, the exponent is 112 too small; a product puts it right
    // for subnormal numbers too.
    const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

/// float to IEEE binary16, to nearest even; what is too large is infinite.
inline uint16_t float_to_half(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) { // NaN, kept one by a bit of its mantissa
        return uint16_t(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    }
    if (magnitude >= 0x477ff000) { // rounds to 2^16 or more
        return uint16_t(sign | 0x7c00);
    }
    if (magnitude < 0x38800000) { // under 2^-14: subnormal in binary16
        // The sum's last place is 2^-24, so it rounds as binary16 does.
        const float sum = std::bit_cast<float>(magnitude) + 0.5f;
        return uint16_t(sign | (std::bit_cast<uint32_t>(sum) - 0x3f000000));
    }
    const uint32_t odd = magnitude >> 13 & 1;
    return uint16_t(sign | (magnitude - 0x38000000 + 0xfff + odd) >> 13);
}

/// bfloat16, the upper half of a float, to float.
inline float bfloat16_to_float(uint16_t value) {
    return std::bit_cast<float>(uint32_t(value) << 16);
}

} // namespace faiss_flashgmm
