#include <faiss_flashgmm/cpu/NearTiles.h>

#include <cmath>
#include <map>
#include <random>

#include <gtest/gtest.h>

namespace faiss_flashgmm {
namespace {

/// 700 rows in 5 lists, one of them empty and one larger than a tile.
struct NearTilesTest : ::testing::Test {
    static constexpr int64_t d = 19;
    static constexpr int64_t nlist = 5;
    std::vector<int64_t> begin{0, 3, 3, 400, 650, 700};
    std::vector<float> base = values(700 * d, 1);
    std::vector<float> centroids = values(nlist * d, 2);
    std::vector<float> rows = values(300 * d, 3);

    std::vector<float> values(size_t size, unsigned seed) {
        std::mt19937 generator(seed);
        std::normal_distribution<float> normal(offset, 1);
        std::vector<float> out(size);
        for (float& value : out) {
            value = normal(generator);
        }
        return out;
    }

    static constexpr float offset = 500; // cancels but in residuals

    ListedRows listed(bool inner_product) const {
        return {d,
                nlist,
                base.data(),
                begin.data(),
                centroids.data(),
                inner_product};
    }

    double distance(int64_t row, int64_t base_row, bool inner_product) const {
        double sum = 0;
        for (int64_t j = 0; j < d; j++) {
            const double a = rows[row * d + j], b = base[base_row * d + j];
            sum += inner_product ? -a * b : (a - b) * (a - b);
        }
        return sum;
    }
};

TEST_F(NearTilesTest, VisitsEachRowOfAProbedListOnce) {
    const int64_t n = 300, n_probes = 3;
    std::vector<int64_t> probes(n * n_probes);
    for (int64_t i = 0; i < n; i++) {
        probes[i * n_probes] = i % nlist;
        probes[i * n_probes + 1] = i % 4 == 0 ? -1 : (i + 2) % nlist;
        probes[i * n_probes + 2] = i % 7 == 0 ? -1 : (i + 1) % nlist;
    }
    for (bool inner_product : {false, true}) {
        std::map<std::pair<int64_t, int64_t>, float> seen;
        NearTiles tiles(listed(inner_product));
        tiles.run(n, rows.data(), n_probes, probes.data(), [&](NearTile tile) {
            for (int64_t i = 0; i < tile.n_rows; i++) {
                for (int64_t j = 0; j < tile.n_base; j++) {
                    EXPECT_TRUE(seen.emplace(
                                            std::pair(
                                                    tile.rows[i],
                                                    tile.first_base + j),
                                            tile.distances[i * tile.n_base + j])
                                        .second);
                }
            }
        });
        size_t expected = 0;
        for (int64_t i = 0; i < n * n_probes; i++) {
            if (probes[i] < 0) {
                continue;
            }
            for (int64_t b = begin[probes[i]]; b < begin[probes[i] + 1]; b++) {
                expected++;
                const auto found = seen.find({i / n_probes, b});
                ASSERT_NE(found, seen.end());
                const double wanted = distance(i / n_probes, b, inner_product);
                ASSERT_NEAR(found->second, wanted, 1e-5 * std::abs(wanted));
            }
        }
        EXPECT_EQ(seen.size(), expected);
    }
}

} // namespace
} // namespace faiss_flashgmm
