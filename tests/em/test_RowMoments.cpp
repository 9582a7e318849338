#include <omp.h>

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include <faiss_flashgmm/em/RowMoments.h>

#include "blobs.h"

namespace {

using namespace faiss_flashgmm;

TEST(RowMoments, AreThoseOfTheWeightedRows) {
    for (const int64_t d : {1, 5, 16, 17, 100}) {
        const int64_t n = 300;
        const std::vector<float> x = make_blobs(n, d, 4, 3);
        std::vector<float> w(n);
        double weight = 0;
        for (int64_t i = 0; i < n; i++) {
            w[i] = float(i % 3);
            weight += w[i];
        }
        RowMoments moments(std::vector<double>(d, 0.5));
        EXPECT_EQ(moments.add(0, {n, x.data(), w.data()}), "");
        double variance = 0;
        for (int64_t j = 0; j < d; j++) {
            double mean = 0;
            for (int64_t i = 0; i < n; i++) {
                mean += w[i] * x[i * d + j] / weight;
            }
            EXPECT_NEAR(moments.mean()[j], mean, 1e-12 * (1 + std::abs(mean)));
            for (int64_t i = 0; i < n; i++) {
                variance += w[i] * std::pow(x[i * d + j] - mean, 2) /
                        (weight * double(d));
            }
        }
        EXPECT_NEAR(moments.variance(), variance, 1e-12 * variance);
        EXPECT_EQ(moments.rows(), n);
        EXPECT_EQ(moments.weighted_rows(), 200);
    }
}

TEST(RowMoments, ThreadsAndChunksDoNotMatterBitForBit) {
    const int64_t n = 500, d = 70;
    const std::vector<float> x = make_blobs(n, d, 4, 3);
    RowMoments whole(std::vector<double>(d, 0.0));
    whole.add(0, {n, x.data(), nullptr});
    const int threads = omp_get_max_threads();
    for (const int t : {1, 2, 5, 64}) {
        omp_set_num_threads(t);
        RowMoments parts(std::vector<double>(d, 0.0));
        for (int64_t i = 0; i < n; i += 77) {
            parts.add(i, {std::min<int64_t>(77, n - i), &x[i * d], nullptr});
        }
        EXPECT_TRUE(std::ranges::equal(parts.flat(), whole.flat())) << t;
    }
    omp_set_num_threads(threads);
}

TEST(RowMoments, NamesTheFirstBadRow) {
    const int64_t n = 50, d = 40;
    std::vector<float> x = make_blobs(n, d, 4, 3), w(n, 1.0f);
    x[20 * d + 39] = NAN;
    x[20 * d + 7] = -INFINITY;
    x[30 * d] = NAN;
    RowMoments moments(std::vector<double>(d, 0.0));
    EXPECT_EQ(
            moments.add(1000, {n, x.data(), w.data()}),
            "row 1020 has -inf in column 7; rows must be finite");
    w[3] = -2;
    EXPECT_EQ(
            moments.add(1000, {n, x.data(), w.data()}),
            "the weight of row 1003 is -2; weights must be finite and >= 0");
}

TEST(RowMoments, ACommonOffsetCancels) {
    std::vector<float> x(1000);
    for (int i = 0; i < 1000; i++) {
        x[i] = 1e7f + float(i % 2);
    }
    RowMoments moments(std::vector<double>(1, 1e7));
    moments.add(0, {1000, x.data(), nullptr});
    EXPECT_DOUBLE_EQ(moments.mean()[0], 1e7 + 0.5);
    EXPECT_DOUBLE_EQ(moments.variance(), 0.25);
}

} // namespace
