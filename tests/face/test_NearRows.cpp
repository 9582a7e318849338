#include <faiss_flashgmm/NearRows.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include <gtest/gtest.h>

#include <faiss/IndexFlat.h>
#include <faiss/impl/AuxIndexStructures.h>
#include <faiss/impl/FaissException.h>

#include "face/multi_assign_cases.h"

namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;

/// Integers, so that all distances are exact.
struct NearRowsTest : ::testing::Test {
    static constexpr idx_t kLists = 10;
    std::vector<float> base = base_rows();
    std::vector<float> rows = query_rows();
    faiss::IndexFlat l2{kDim, faiss::METRIC_L2};
    faiss::IndexFlat inner_product{kDim, faiss::METRIC_INNER_PRODUCT};

    NearRowsTest() {
        std::vector<float> centroids = clustered_rows(kLists, kDim, kLists, 5);
        for (std::vector<float>* values : {&base, &rows, &centroids}) {
            for (float& value : *values) {
                value = std::round(8 * value);
            }
        }
        l2.add(kLists, centroids.data());
        inner_product.add(kLists, centroids.data());
    }

    static float distance(
            const faiss::Index& quantizer,
            const float* a,
            const float* b) {
        float sum = 0;
        for (int j = 0; j < kDim; j++) {
            sum += quantizer.metric_type == faiss::METRIC_L2
                    ? (a[j] - b[j]) * (a[j] - b[j])
                    : -a[j] * b[j];
        }
        return sum;
    }

    /// Of a row to all base rows, those in none of the lists excepted.
    std::vector<float> distances(
            const faiss::Index& quantizer,
            const float* row,
            const std::vector<idx_t>& lists,
            const idx_t* lists_of_base) const {
        std::vector<float> out(kRows, INFINITY);
        for (idx_t i = 0; i < kRows; i++) {
            if (std::ranges::count(lists, lists_of_base[i])) {
                out[i] = distance(quantizer, row, &base[i * kDim]);
            }
        }
        return out;
    }
};

TEST_F(NearRowsTest, FindsAllThatIsNearInTheListsItReaches) {
    constexpr int k = 7;
    for (const faiss::IndexFlat* quantizer : {&l2, &inner_product}) {
        std::vector<idx_t> of_base(kRows);
        quantizer->assign(kRows, base.data(), of_base.data());
        for (const idx_t reach : {idx_t(2), kLists}) {
            std::vector<idx_t> probes(kQueries * reach);
            std::vector<float> unused(kQueries * reach);
            quantizer->search(
                    kQueries, rows.data(), reach, unused.data(), probes.data());
            std::vector<std::vector<float>> expected;
            for (idx_t i = 0; i < kQueries; i++) {
                expected.push_back(distances(
                        *quantizer,
                        &rows[i * kDim],
                        {probes.begin() + i * reach,
                         probes.begin() + (i + 1) * reach},
                        of_base.data()));
            }
            const auto near = near_rows(
                    *quantizer,
                    {NeighborSearch::cpu, reach},
                    kRows,
                    base.data());

            std::vector<idx_t> self(kQueries);
            std::vector<std::vector<float>> found(kQueries);
            std::vector<int> visits(kQueries);
            for (idx_t i = 0; i < kQueries; i++) { // the nearest, or none
                self[i] = i % 3 == 0 ? -1
                                     : std::ranges::min_element(expected[i]) -
                                expected[i].begin();
            }
            near->nearest(
                    kQueries,
                    rows.data(),
                    k,
                    self.data(),
                    [&](idx_t first, const auto& block) {
                        for (const auto& of_row : block) {
                            visits[first]++;
                            found[first++].assign(of_row.begin(), of_row.end());
                        }
                    });
            EXPECT_EQ(visits, std::vector<int>(kQueries, 1));
            for (idx_t i = 0; i < kQueries; i++) {
                std::vector<float> best = expected[i];
                if (self[i] >= 0) {
                    best[self[i]] = INFINITY;
                }
                std::ranges::sort(best);
                best.resize(k);
                std::erase(best, INFINITY);
                EXPECT_EQ(found[i], best) << "row " << i;
            }

            // Radii that let some of the rows in.
            std::vector<float> radii(kRows);
            for (idx_t i = 0; i < kRows; i++) {
                radii[i] = i % 10 == 0 ? -INFINITY
                                       : distance(
                                                 *quantizer,
                                                 &base[i * kDim],
                                                 &rows[i % kQueries * kDim]);
            }
            std::atomic<size_t> all = 0;
            near->within(
                    kQueries,
                    rows.data(),
                    radii.data(),
                    [&](idx_t first, const auto& block) {
                        for (const auto& of_row : block) {
                            std::vector<idx_t> expected_ids, ids;
                            for (idx_t j = 0; j < kRows; j++) {
                                if (expected[first][j] <= radii[j] &&
                                    std::isfinite(expected[first][j])) {
                                    expected_ids.push_back(j);
                                }
                            }
                            for (const Near& y : of_row) {
                                ids.push_back(y.base);
                                EXPECT_EQ(y.distance, expected[first][y.base]);
                            }
                            EXPECT_EQ(ids, expected_ids) << "row " << first;
                            all += ids.size();
                            first++;
                        }
                    });
            EXPECT_GT(all.load(), 100u);
        }
    }
}

TEST_F(NearRowsTest, ListedRowsAreFoundByTheirPlace) {
    std::vector<idx_t> lists(kRows), begin;
    l2.assign(kRows, base.data(), lists.data());
    lists[5] = -1; // left out
    const std::vector<idx_t> ids =
            sort_by_list(kRows, lists.data(), 1, kLists, begin);
    ASSERT_EQ(idx_t(ids.size()), kRows - 1);
    EXPECT_EQ(std::ranges::count(ids, 5), 0);
    const std::vector<float> listed = gather_rows(ids, base.data(), kDim);
    const std::vector<float> radii(ids.size(), 0.f);
    near_listed_rows(l2, {NeighborSearch::cpu, 1}, listed.data(), begin.data())
            ->within(
                    idx_t(ids.size()),
                    listed.data(),
                    radii.data(),
                    [&](idx_t first, const auto& block) {
                        for (const auto& of_row : block) {
                            const auto is_self = [&](const Near& y) {
                                return y.base == first && y.distance == 0;
                            };
                            EXPECT_EQ(
                                    std::ranges::count_if(of_row, is_self), 1);
                            first++;
                        }
                    });
}

struct InterruptAlways : faiss::InterruptCallback {
    bool want_interrupt() override {
        return true;
    }
};

TEST_F(NearRowsTest, CanBeInterrupted) {
    const auto near =
            near_rows(l2, {NeighborSearch::cpu, kLists}, kRows, base.data());
    std::atomic<idx_t> visited = 0;
    const auto look = [&] {
        near->nearest(
                kQueries, rows.data(), 1, nullptr, [&](idx_t, auto block) {
                    visited += idx_t(block.size());
                });
    };
    faiss::InterruptCallback::instance = std::make_unique<InterruptAlways>();
    EXPECT_THROW(look(), faiss::FaissException);
    faiss::InterruptCallback::clear_instance();
    EXPECT_EQ(visited, 0);
    look();
    EXPECT_EQ(visited, kQueries);
}

} // namespace
} // namespace faiss_flashgmm
