#include <faiss_flashgmm/ScanCurve.h>

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include <faiss/IndexFlat.h>

#include "face/multi_assign_cases.h"

namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;

TEST(ScanCurve, EqualsWhatSearchesFindAndScan) {
    constexpr int k = 10;
    faiss::IndexFlatL2 exact(kDim);
    exact.add(kRows, base_rows().data());
    const Results wanted = search(exact, query_rows(), k);
    const MultiIndex index = make_filled({});
    const std::vector<idx_t> lists = assigned_lists(index, base_rows());
    const ScanCurve curve = measure_scans(
            *index->quantizer,
            kRows,
            index.multi->assigner.max_lists(),
            lists.data(),
            kQueries,
            query_rows().data(),
            k,
            wanted.labels.data());
    ASSERT_EQ(curve.recall.size(), size_t(kLists));
    ASSERT_EQ(curve.scanned.size(), size_t(kLists));
    for (int nprobe : {1, 2, 7, kLists}) {
        index->nprobe = nprobe;
        faiss::indexIVF_stats.reset();
        const Results found = search(*index, query_rows(), k);
        int hits = 0;
        for (idx_t q = 0; q < kQueries; q++) {
            const auto begin = wanted.labels.begin() + q * k;
            for (int j = 0; j < k; j++) {
                hits += std::count(begin, begin + k, found.labels[q * k + j]);
            }
        }
        EXPECT_NEAR(
                curve.recall[nprobe - 1], double(hits) / (kQueries * k), 1e-9);
        EXPECT_NEAR(
                curve.scanned[nprobe - 1],
                double(faiss::indexIVF_stats.ndis) / kQueries,
                1e-6);
    }
    EXPECT_NEAR(curve.recall.back(), 1, 1e-9);
}

TEST(ScanCurve, CountsARowInSeveralProbedListsOnce) {
    const MultiIndex index = make_filled({});
    const int width = index.multi->assigner.max_lists();
    const std::vector<idx_t> lists = assigned_lists(index, base_rows());
    const ProbingOrder order(*index->quantizer, kQueries, query_rows().data());
    const std::vector<double> distinct =
            distinct_scanned(order, kRows, width, lists.data());
    ASSERT_EQ(distinct.size(), size_t(kLists));
    EXPECT_NEAR(distinct.back(), kRows, 1e-9);
    for (int nprobe : {1, 3, 8}) {
        int64_t expected = 0;
        for (idx_t q = 0; q < kQueries; q++) {
            for (idx_t i = 0; i < kRows; i++) {
                expected += std::any_of(
                        &lists[i * width],
                        &lists[i * width] + width,
                        [&](idx_t list) {
                            return list >= 0 &&
                                    order.places[q * kLists + list] < nprobe;
                        });
            }
        }
        EXPECT_NEAR(distinct[nprobe - 1], double(expected) / kQueries, 1e-9);
    }
}

TEST(ScanCurve, InterpolatesBetweenTwoProbes) {
    ScanCurve curve;
    curve.recall = {0.5, 0.8, 0.9};
    curve.scanned = {100, 200, 400};
    EXPECT_DOUBLE_EQ(curve.probes_at(0.3), 1);
    EXPECT_DOUBLE_EQ(curve.scanned_at(0.3), 100);
    EXPECT_DOUBLE_EQ(curve.probes_at(0.8), 2);
    EXPECT_NEAR(curve.scanned_at(0.8), 200, 1e-9);
    EXPECT_NEAR(curve.probes_at(0.85), 2.5, 1e-9);
    EXPECT_NEAR(curve.scanned_at(0.85), 200 * std::sqrt(2), 1e-9);
    EXPECT_NEAR(curve.scanned_at(0.9), 400, 1e-9);
    EXPECT_EQ(curve.probes_at(0.95), INFINITY);
    EXPECT_EQ(curve.scanned_at(0.95), INFINITY);
}

TEST(ScanCurve, RefusesANeighborThatIsNoRow) {
    faiss::IndexFlatL2 quantizer(kDim);
    quantizer.add(2, base_rows().data());
    const idx_t lists[] = {0, 1}, neighbor = 2;
    EXPECT_NE(
            message_of([&] {
                measure_scans(
                        quantizer,
                        2,
                        1,
                        lists,
                        1,
                        query_rows().data(),
                        1,
                        &neighbor);
            }).find("neighbor 2"),
            std::string::npos);
}

} // namespace
} // namespace faiss_flashgmm
