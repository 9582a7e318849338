#include <faiss_flashgmm/UniqueIVFPQFastScan.h>

#if FAISS_FLASHGMM_HAS_FAST_SCAN_SCANNER

#include <algorithm>
#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include <faiss/IndexFlat.h>

#include <faiss_flashgmm/IndexIVFMultiAssign.h>

#include "face/multi_assign_cases.h"

namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;

/// Few lists, each longer than what is scanned at once and not of whole blocks.
/// By metric, and whether codes are those of residuals.
class UniqueFastScanTest
        : public ::testing::TestWithParam<std::pair<faiss::MetricType, bool>> {
   protected:
    void SetUp() override {
        const auto [metric, by_residual] = GetParam();
        auto ivf = std::make_unique<IndexIVFPQFastScanMultiAssign>(
                new faiss::IndexFlat(kDim, metric), kDim, 4, 8, 4, metric);
        ivf->own_fields = true;
        ivf->by_residual = by_residual;
        ivf->assigner.policy = AssignPolicy::nearest;
        ivf->train(kRows, base_rows().data());
        ivf->add(kRows, base_rows().data());
        fast_scan = ivf.get();
        index.multi = ivf.get();
        index.ivf = std::move(ivf);
        for (size_t list = 0; list < 4; list++) {
            longest = std::max(longest, index->invlists->list_size(list));
        }
        index->nprobe = 3;
    }

    static std::vector<float> queries(idx_t n) {
        return {query_rows().begin(), query_rows().begin() + n * kDim};
    }

    MultiIndex index;
    IndexIVFPQFastScanMultiAssign* fast_scan = nullptr;
    size_t longest = 0;
};

INSTANTIATE_TEST_SUITE_P(
        Codes,
        UniqueFastScanTest,
        ::testing::Values(
                std::pair(faiss::METRIC_L2, false),
                std::pair(faiss::METRIC_L2, true),
                std::pair(faiss::METRIC_INNER_PRODUCT, false),
                std::pair(faiss::METRIC_INNER_PRODUCT, true)));

TEST_P(UniqueFastScanTest, FindsTheBestOfEachIdForAnyNumberOfQueries) {
    EXPECT_GT(longest, 512u);
    const Oracle oracle(index, base_rows());
    for (idx_t n : {1, 2, 4, 5, 11, 13, 40}) {
        for (idx_t k : {1, 2, 10, 17, 100, 1000, 1025}) {
            SCOPED_TRACE(::testing::Message() << n << " queries, k " << k);
            oracle.expect_equal(*index, queries(n), k);
        }
    }
}

TEST_P(UniqueFastScanTest, TheScanDropsRepeats) {
    // A stock search of this index sees what the scanner gives.
    const idx_t n = kQueries, k = 10;
    Results results{k, std::vector<float>(n * k), std::vector<idx_t>(n * k)};
    fast_scan->faiss::IndexIVFPQFastScan::search_preassigned(
            n,
            query_rows().data(),
            k,
            nullptr,
            nullptr,
            results.distances.data(),
            results.labels.data(),
            false);
    expect_well_formed(results, index->metric_type);
    EXPECT_EQ(results, search(*index, query_rows(), k));
}

TEST_P(UniqueFastScanTest, ChoosesAmongSelectedEntries) {
    const Selector some([](idx_t id) { return id % 7 == 3; });
    faiss::IVFSearchParameters parameters;
    parameters.nprobe = 3;
    parameters.sel = const_cast<Selector*>(&some);
    const idx_t few = 16, many = 1100; // by the scan, and by fetching more
    ASSERT_TRUE(fast_scan->drops_repeats(few, &parameters));
    ASSERT_FALSE(fast_scan->drops_repeats(many, &parameters));
    const Results scanned = search(*index, query_rows(), few, &parameters);
    const Results fetched = search(*index, query_rows(), many, &parameters);
    expect_well_formed(scanned, index->metric_type);
    for (idx_t i = 0; i < kQueries; i++) {
        for (idx_t j = 0; j < few; j++) {
            EXPECT_EQ(scanned.labels[i * few + j] % 7, 3);
            EXPECT_FLOAT_EQ(
                    scanned.distances[i * few + j],
                    fetched.distances[i * many + j]);
        }
    }
}

TEST_P(UniqueFastScanTest, EveryImplementationFindsTheSame) {
    const Results results = search(*index, query_rows(), 10);
    for (int implem : {10, 11, 12, 13, 14, 15, 110, 112, 113}) {
        fast_scan->implem = implem;
        EXPECT_EQ(
                fast_scan->drops_repeats(10, nullptr),
                implem % 100 == 12 || implem % 100 == 13);
        const Results again = search(*index, query_rows(), 10);
        expect_well_formed(again, index->metric_type);
        for (size_t i = 0; i < again.distances.size(); i++) {
            EXPECT_FLOAT_EQ(again.distances[i], results.distances[i])
                    << implem << ", " << i;
        }
    }
}

TEST_P(UniqueFastScanTest, ScansWhatFaissScansForSeveralQueriesAtOnce) {
    EXPECT_TRUE(fast_scan->drops_repeats(2, nullptr));
    EXPECT_TRUE(fast_scan->drops_repeats(1024, nullptr));
    EXPECT_FALSE(fast_scan->drops_repeats(1, nullptr));
    EXPECT_FALSE(fast_scan->drops_repeats(1025, nullptr));
    faiss::IVFSearchParameters early;
    early.max_codes = 100;
    EXPECT_FALSE(fast_scan->drops_repeats(10, &early));
    const IndexIVFPQFastScanMultiAssign wide(
            fast_scan->quantizer, kDim, 4, 8, 4, index->metric_type, 64);
    EXPECT_FALSE(wide.drops_repeats(10, nullptr));
}

} // namespace
} // namespace faiss_flashgmm

#endif
