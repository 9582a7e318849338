#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <faiss_flashgmm/cpu/row_kernels.h>

namespace {

using namespace faiss_flashgmm;

/// Each instruction set that this processor has, and the scalar code.
class RowKernels : public testing::TestWithParam<int64_t> {
   protected:
    void SetUp() override {
        hwy::SetSupportedTargetsForTest(GetParam());
    }
    void TearDown() override {
        hwy::SetSupportedTargetsForTest(0);
    }

    std::vector<float> draw(size_t n, float low, float high) {
        std::uniform_real_distribution<float> uniform(low, high);
        std::vector<float> v(n);
        for (float& e : v) {
            e = uniform(random_);
        }
        return v;
    }

    std::mt19937 random_{5};
};

const std::vector<size_t> kSizes =
        {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100, 128, 129, 1000};

TEST_P(RowKernels, UpperBounds) {
    for (const size_t n : kSizes) {
        const auto slope = draw(n, 0, 3);
        const auto intercept = draw(n, -5, 5);
        const auto products = draw(n, -4, 4);
        std::vector<float> u = products;
        const float largest = row_kernels::upper_bounds(
                n, slope.data(), intercept.data(), 1.25f, u.data());
        float expected = -INFINITY;
        for (size_t i = 0; i < n; i++) {
            const double bound =
                    double(slope[i]) * (products[i] - 1.25) + intercept[i];
            EXPECT_NEAR(u[i], bound, 3e-6);
            expected = std::max(expected, u[i]);
        }
        EXPECT_EQ(largest, expected);
    }
}

TEST_P(RowKernels, LargestAndIndexOf) {
    for (const size_t n : kSizes) {
        std::vector<float> u(n);
        std::iota(u.begin(), u.end(), 0.0f);
        for (size_t i = 0; i < n; i++) {
            EXPECT_EQ(row_kernels::index_of(n, u.data(), float(i)), i);
        }
        EXPECT_EQ(row_kernels::index_of(n, u.data(), -1.0f), n);
        EXPECT_EQ(row_kernels::largest(n, u.data()), float(n - 1));
        std::reverse(u.begin(), u.end());
        EXPECT_EQ(row_kernels::largest(n, u.data()), float(n - 1));
        std::fill(u.begin(), u.end(), 7.0f);
        EXPECT_EQ(row_kernels::index_of(n, u.data(), 7.0f), 0);
    }
}

TEST_P(RowKernels, SelectAbove) {
    for (const size_t n : kSizes) {
        std::vector<float> u = draw(n, -40, 0);
        u[0] = -INFINITY;
        for (const float threshold : {-INFINITY, -30.0f, -3.0f, 1.0f}) {
            std::vector<uint32_t> indices(n, 12345);
            float missed = NAN;
            const size_t count = row_kernels::select_above(
                    n, u.data(), threshold, 0.5f, &missed, indices.data());
            std::vector<uint32_t> expected;
            double sum = 0;
            for (size_t i = 0; i < n; i++) {
                if (u[i] > threshold) {
                    expected.push_back(uint32_t(i));
                } else if (u[i] > threshold - row_kernels::kMissedBits) {
                    sum += std::exp2(double(u[i]) - 0.5);
                }
            }
            indices.resize(count);
            EXPECT_EQ(indices, expected);
            EXPECT_GE(missed, (1 - 1e-5) * sum);
            EXPECT_LE(missed, (1.062 + 1e-5) * sum);
        }
    }
}

TEST_P(RowKernels, SquaredDistances) {
    for (const size_t d : kSizes) {
        const auto means = draw(5 * d, -1, 1);
        const auto x = draw(d, -1, 1);
        const std::vector<uint32_t> indices = {4, 0, 2};
        std::vector<float> distances(3, NAN);
        row_kernels::squared_distances(
                d, x.data(), means.data(), 3, indices.data(), distances.data());
        for (int i = 0; i < 3; i++) {
            double sum = 0;
            for (size_t j = 0; j < d; j++) {
                const double delta = double(x[j]) - means[indices[i] * d + j];
                sum += delta * delta;
            }
            EXPECT_NEAR(distances[i], sum, 4e-7 * sum) << d;
        }
    }
}

TEST_P(RowKernels, SquaredDistanceOfARowToItselfIsZero) {
    const auto x = draw(100, 1e6f, 2e6f);
    const uint32_t index = 0;
    float distance = NAN;
    row_kernels::squared_distances(
            100, x.data(), x.data(), 1, &index, &distance);
    EXPECT_EQ(distance, 0);
}

TEST_P(RowKernels, Exp2Below) {
    for (const size_t n : kSizes) {
        const auto logits = draw(n, -24, 0);
        std::vector<float> r(n, NAN);
        const double sum = row_kernels::exp2_below(n, logits.data(), r.data());
        double expected = 0;
        for (size_t i = 0; i < n; i++) {
            const double exact = std::exp2(double(logits[i]));
            EXPECT_NEAR(r[i], exact, 2e-6 * exact);
            expected += exact;
        }
        EXPECT_NEAR(sum, expected, 1e-6 * expected);
    }
    float one;
    const float zero = 0;
    EXPECT_EQ(row_kernels::exp2_below(1, &zero, &one), 1);
}

TEST_P(RowKernels, AddWeightedRows) {
    for (const size_t d : kSizes) {
        const auto x = draw(9 * d, -1, 1);
        const std::vector<uint32_t> rows = {8, 0, 3, 3, 7};
        const std::vector<double> weights = {0.5, 1, 1e-9, 2, 1e9};
        std::vector<double> sums(d, 0.25);
        row_kernels::add_weighted_rows(
                d, x.data(), 5, rows.data(), weights.data(), sums.data());
        for (size_t j = 0; j < d; j++) {
            double expected = 0.25;
            for (int i = 0; i < 5; i++) {
                expected += weights[i] * double(x[rows[i] * d + j]);
            }
            EXPECT_NEAR(sums[j], expected, 1e-15 * 1e9 * 4);
        }
        // In one go or row by row: the same bits.
        std::vector<double> again(d, 0.25);
        for (int i = 0; i < 5; i++) {
            row_kernels::add_weighted_rows(
                    d, x.data(), 1, &rows[i], &weights[i], again.data());
        }
        EXPECT_EQ(again, sums);
    }
}

TEST_P(RowKernels, SquaredNormAndCondition) {
    for (const size_t d : kSizes) {
        const auto x = draw(d, -1, 1);
        const auto shift = draw(d, -1, 1);
        double sum = 0;
        for (const float v : x) {
            sum += double(v) * v;
        }
        EXPECT_NEAR(row_kernels::squared_norm(d, x.data()), sum, 1e-13 * sum);
        std::vector<float> out(d, NAN);
        row_kernels::condition(d, x.data(), shift.data(), 0.25, out.data());
        for (size_t j = 0; j < d; j++) {
            EXPECT_EQ(out[j], float((double(x[j]) - shift[j]) * 0.25));
        }
    }
}

TEST_P(RowKernels, NextBelow) {
    constexpr size_t kBlock = row_kernels::kBelowBlock;
    const auto check = [](const std::vector<uint16_t>& values,
                          uint16_t offset,
                          uint16_t flip,
                          uint16_t threshold) {
        const auto below_in = [&](size_t block) {
            uint32_t below = 0;
            for (size_t j = 0; j < kBlock; j++) {
                const uint16_t sum = values[block + j] + offset;
                below |= uint32_t((sum ^ flip) < threshold) << j;
            }
            return below;
        };
        const size_t n = values.size();
        for (size_t from = 0; from <= n; from += kBlock) {
            size_t expected = from;
            while (expected < n && below_in(expected) == 0) {
                expected += kBlock;
            }
            uint32_t below = 0;
            const size_t block = row_kernels::next_below(
                    n, values.data(), offset, flip, threshold, from, &below);
            ASSERT_EQ(block, expected);
            ASSERT_EQ(below, block < n ? below_in(block) : 0);
        }
    };
    for (const size_t blocks : {1, 2, 8}) {
        std::vector<uint16_t> values(blocks * kBlock);
        for (const unsigned range : {8u, 1000u, 65536u}) {
            for (uint16_t& value : values) {
                value = uint16_t(random_() % range);
            }
            for (const uint16_t threshold : {0, 1, 5, 900, 0xffff}) {
                for (const uint16_t offset : {0, 3, 40000}) {
                    check(values, offset, 0, threshold);
                    check(values, offset, 0xffff, threshold);
                }
            }
        }
    }
}

std::vector<int64_t> targets() {
    std::vector<int64_t> all;
    for (int64_t left = hwy::SupportedTargets(); left != 0;) {
        const int64_t target = left & -left;
        all.push_back(target);
        left &= ~target;
    }
    return all;
}

INSTANTIATE_TEST_SUITE_P(
        Targets,
        RowKernels,
        testing::ValuesIn(targets()),
        [](const auto& info) { return hwy::TargetName(info.param); });

} // namespace
