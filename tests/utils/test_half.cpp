#include <faiss_flashgmm/utils/half.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

using faiss_flashgmm::bfloat16_to_float;
using faiss_flashgmm::float_to_half;
using faiss_flashgmm::half_to_float;

namespace {

/// By definition: (-1)^s * 2^(e - 15) * 1.m, or 2^-14 * 0.m for e = 0.
double value_of(uint16_t half) {
    const int exponent = half >> 10 & 31;
    const double mantissa = (half & 1023) / 1024.0;
    const double magnitude = exponent == 0
            ? std::ldexp(mantissa, -14)
            : std::ldexp(1 + mantissa, exponent - 15);
    return half & 0x8000 ? -magnitude : magnitude;
}

bool is_finite(uint16_t half) {
    return (half & 0x7c00) != 0x7c00;
}

} // namespace

TEST(half, EveryFiniteValueIsExactAndComesBack) {
    for (uint32_t i = 0; i < 1 << 16; i++) {
        const auto half = uint16_t(i);
        if (is_finite(half)) {
            ASSERT_EQ(half_to_float(half), value_of(half)) << i;
            ASSERT_EQ(float_to_half(half_to_float(half)), half) << i;
        }
    }
}

TEST(half, RoundsToNearestAndTiesToEven) {
    // Between each two neighbours: at, just under and just over the middle.
    for (uint16_t half = 0; half < 0x7bff; half++) {
        const auto next = uint16_t(half + 1);
        const auto middle = float((value_of(half) + value_of(next)) / 2);
        const uint16_t even = half & 1 ? next : half;
        ASSERT_EQ(float_to_half(middle), even) << half;
        ASSERT_EQ(float_to_half(std::nextafter(middle, 0.f)), half) << half;
        ASSERT_EQ(float_to_half(std::nextafter(middle, 1e9f)), next) << half;
        ASSERT_EQ(float_to_half(-middle), even | 0x8000) << half;
    }
    EXPECT_EQ(float_to_half(65519), 0x7bff);
    EXPECT_EQ(float_to_half(65520), 0x7c00);
    EXPECT_EQ(float_to_half(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(half, KeepsInfinityAndNaN) {
    EXPECT_EQ(half_to_float(0x7c00), INFINITY);
    EXPECT_EQ(half_to_float(0xfc00), -INFINITY);
    EXPECT_EQ(float_to_half(INFINITY), 0x7c00);
    EXPECT_EQ(float_to_half(-INFINITY), 0xfc00);
    EXPECT_EQ(float_to_half(1e30f), 0x7c00);
    for (uint16_t nan : {0x7c01, 0x7e00, 0xffff}) {
        EXPECT_TRUE(std::isnan(half_to_float(nan))) << nan;
    }
    for (uint32_t nan : {0x7f800001u, 0x7fc00000u, 0xffffffffu}) {
        const uint16_t half = float_to_half(std::bit_cast<float>(nan));
        EXPECT_TRUE(std::isnan(half_to_float(half))) << nan;
    }
}

TEST(half, BFloat16IsTheUpperHalfOfAFloat) {
    EXPECT_EQ(bfloat16_to_float(0x3f80), 1);
    EXPECT_EQ(bfloat16_to_float(0xc049), -3.140625f);
    EXPECT_TRUE(std::isnan(bfloat16_to_float(0x7fc0)));
}
