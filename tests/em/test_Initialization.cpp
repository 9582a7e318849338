#include <algorithm>
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include <faiss_flashgmm/em/Initialization.h>

#include "blobs.h"

namespace {

using namespace faiss_flashgmm;

using Draw = void (*)(RowSource&, int64_t, int64_t, uint64_t, float*);

class DrawMeans : public testing::TestWithParam<Draw> {};

TEST_P(DrawMeans, DrawsDistinctRowsOfTheData) {
    const int64_t n = 300, d = 5, k = 40;
    const std::vector<float> x = make_blobs(n, d, 7, 3);
    MemoryRows rows(n, d, x.data());
    std::vector<float> means(k * d);
    GetParam()(rows, 0, k, 12, means.data());
    std::set<std::vector<float>> data, drawn;
    for (int64_t i = 0; i < n; i++) {
        data.emplace(x.begin() + i * d, x.begin() + (i + 1) * d);
    }
    for (int64_t c = 0; c < k; c++) {
        std::vector<float> mean(
                means.begin() + c * d, means.begin() + (c + 1) * d);
        EXPECT_TRUE(data.count(mean)) << c;
        drawn.insert(mean);
    }
    EXPECT_EQ(drawn.size(), k);

    std::vector<float> again(k * d);
    GetParam()(rows, 0, k, 12, again.data());
    EXPECT_EQ(again, means);
    GetParam()(rows, 0, k, 13, again.data());
    EXPECT_NE(again, means);
}

TEST_P(DrawMeans, KeepsGivenMeansAndFindsTheOtherValues) {
    // Five values, twenty times each: the other four must be found.
    std::vector<float> x;
    for (int i = 0; i < 100; i++) {
        x.push_back(float(i % 5));
    }
    MemoryRows rows(100, 1, x.data());
    std::vector<float> means = {3, 0, 0, 0, 0, 0, 0};
    GetParam()(rows, 1, 7, 5, means.data());
    EXPECT_EQ(means[0], 3);
    EXPECT_EQ(
            std::set<float>(means.begin(), means.begin() + 5),
            (std::set<float>{0, 1, 2, 3, 4}));
    for (const float m : means) {
        EXPECT_TRUE(m >= 0 && m <= 4 && m == std::round(m));
    }
}

TEST_P(DrawMeans, NeverDrawsRowsOfWeightZero) {
    std::vector<float> x(100), w(100, 0.0f);
    for (int i = 0; i < 100; i++) {
        x[i] = float(i);
        w[i] = i % 10 == 3 ? 2.5f : 0.0f;
    }
    MemoryRows rows(100, 1, x.data(), w.data());
    std::vector<float> means(8);
    GetParam()(rows, 0, 8, 1, means.data());
    for (const float m : means) {
        EXPECT_EQ(int(m) % 10, 3);
    }
}

INSTANTIATE_TEST_SUITE_P(
        Methods,
        DrawMeans,
        testing::Values(
                &draw_random_rows,
                +[](RowSource& rows,
                    int64_t first,
                    int64_t k,
                    uint64_t seed,
                    float* means) {
                    draw_kmeans_pp(rows, first, k, seed, means);
                }));

TEST(KmeansPP, SpreadsOverSeparatedBlobs) {
    const int64_t n = 2000, d = 3, k = 20;
    const std::vector<float> x = make_blobs(n, d, k, 1000);
    MemoryRows rows(n, d, x.data());
    std::vector<float> means(k * d);
    draw_kmeans_pp(rows, 0, k, 3, means.data());
    std::set<int64_t> blobs;
    for (int64_t c = 0; c < k; c++) {
        for (int64_t i = 0; i < n; i++) {
            if (std::equal(
                        x.begin() + i * d,
                        x.begin() + (i + 1) * d,
                        means.begin() + c * d)) {
                blobs.insert(i % k);
            }
        }
    }
    EXPECT_EQ(blobs.size(), k);
}

} // namespace
