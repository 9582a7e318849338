#include <algorithm>

#include <gtest/gtest.h>

#include <faiss_flashgmm/em/RowSource.h>
#include <faiss_flashgmm/utils/Error.h>

namespace {

using namespace faiss_flashgmm;

TEST(MemoryRows, ReadsInPlace) {
    const std::vector<float> x = {0, 1, 2, 3, 4, 5};
    const std::vector<float> w = {7, 8, 9};
    MemoryRows rows(3, 2, x.data(), w.data());
    const Rows view = rows.read(1, 2);
    EXPECT_EQ(view.x.data, x.data() + 2);
    EXPECT_EQ(view.weights, w.data() + 1);
    EXPECT_EQ(view.n, 2);
    EXPECT_THROW(rows.read(2, 2), Error);
    EXPECT_THROW(rows.read(-1, 1), Error);
    EXPECT_THROW(MemoryRows(3, 2, RowView()), Error);
}

TEST(SampledRows, ReadsTheChosenRows) {
    std::vector<float> x(20);
    std::vector<float> w(10);
    for (int i = 0; i < 10; i++) {
        x[2 * i] = float(i);
        x[2 * i + 1] = float(-i);
        w[i] = float(100 + i);
    }
    MemoryRows base(10, 2, x.data(), w.data());
    SampledRows sample(base, {0, 3, 4, 5, 9});
    EXPECT_EQ(sample.size(), 5);
    for (int64_t count = 1; count <= 5; count++) {
        const Rows rows = sample.read(5 - count, count);
        const std::vector<int> expected = {0, 3, 4, 5, 9};
        for (int64_t i = 0; i < count; i++) {
            const int row = expected[5 - count + i];
            EXPECT_EQ(rows.x.floats()[2 * i], row);
            EXPECT_EQ(rows.x.floats()[2 * i + 1], -row);
            EXPECT_EQ(rows.weights[i], 100 + row);
        }
    }
}

TEST(SampleIndices, AreDistinctSortedAndUniform) {
    std::vector<int> hits(50, 0);
    for (uint64_t seed = 0; seed < 400; seed++) {
        const auto indices = sample_indices(50, 20, seed);
        ASSERT_EQ(indices.size(), 20);
        ASSERT_TRUE(std::is_sorted(indices.begin(), indices.end()));
        ASSERT_TRUE(
                std::adjacent_find(indices.begin(), indices.end()) ==
                indices.end());
        for (const int64_t i : indices) {
            hits.at(i)++;
        }
    }
    for (const int h : hits) { // 160 expected, standard deviation 9.8
        EXPECT_NEAR(h, 160, 50);
    }
    EXPECT_EQ(sample_indices(50, 20, 3), sample_indices(50, 20, 3));
    EXPECT_EQ(sample_indices(4, 9, 3), (std::vector<int64_t>{0, 1, 2, 3}));
}

TEST(SampleIndices, WorksPastTheRangeOf32Bits) {
    const int64_t n = int64_t(1) << 40;
    const auto indices = sample_indices(n, 1000, 5);
    EXPECT_GT(indices.back(), int64_t(1) << 39);
    EXPECT_LT(indices.back(), n);
}

} // namespace
