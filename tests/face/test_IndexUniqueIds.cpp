#include <faiss_flashgmm/IndexUniqueIds.h>

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include <faiss/AutoTune.h>
#include <faiss/IVFlib.h>
#include <faiss/IndexFlat.h>
#include <faiss/IndexIDMap.h>
#include <faiss/IndexShards.h>
#include <faiss/VectorTransform.h>

#include <faiss_flashgmm/stock_index.h>

#include "face/multi_assign_cases.h"

namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;

struct UniqueIdsTest : ::testing::TestWithParam<Case> {
    MultiIndex index = make_filled(GetParam());
    std::unique_ptr<faiss::Index> stock = to_stock(*index, StockCopies::all);
};

INSTANTIATE_TEST_SUITE_P(
        MultiAssign,
        UniqueIdsTest,
        ::testing::ValuesIn(some_cases()),
        case_name);

TEST_P(UniqueIdsTest, OverStockListsWithCopiesFindsWhatMultiAssignFinds) {
    IndexUniqueIds unique(stock.get());
    for (size_t nprobe : {1, 4, kLists}) {
        faiss::ParameterSpace().set_index_parameter(&unique, "nprobe", nprobe);
        index->nprobe = nprobe;
        ASSERT_EQ(faiss::ivflib::extract_index_ivf(&unique)->nprobe, nprobe);
        for (idx_t k : {1, 10, int(kRows) + 5}) {
            const Results results = search(unique, query_rows(), k);
            expect_well_formed(results, index->metric_type);
            EXPECT_EQ(
                    results.distances,
                    search(*index, query_rows(), k).distances);
        }
        if (!GetParam().offer().range) {
            continue;
        }
        const float radius =
                index->metric_type == faiss::METRIC_L2 ? 12.f : 3.f;
        EXPECT_EQ(
                range_search(unique, query_rows(), radius),
                range_search(*index, query_rows(), radius));
    }
}

TEST_P(UniqueIdsTest, WorksAboveShards) {
    MultiIndex other = make_trained(GetParam());
    std::vector<idx_t> ids(kQueries);
    std::iota(ids.begin(), ids.end(), kRows);
    other->add_with_ids(kQueries, query_rows().data(), ids.data());
    auto other_stock = to_stock(*other, StockCopies::all);
    faiss::IndexShards shards(kDim, false, /*successive_ids=*/false);
    shards.add_shard(stock.get());
    shards.add_shard(other_stock.get());
    IndexUniqueIds unique(&shards);
    EXPECT_EQ(unique.ntotal, kRows + kQueries);
    const Results results = search(unique, query_rows(), 10);
    expect_well_formed(results, index->metric_type);
    index->add(kQueries, query_rows().data());
    EXPECT_EQ(results.distances, search(*index, query_rows(), 10).distances);
}

TEST(IndexUniqueIds, KeepsTheBestOfManyCopiesInOrder) {
    faiss::IndexFlatL2 flat(1);
    faiss::IndexIDMap map(&flat);
    const std::vector<float> rows = {4, 1, 3, 2, 5, 0.5f};
    const std::vector<idx_t> ids = {7, 8, 7, 9, 8, 7};
    map.add_with_ids(6, rows.data(), ids.data());
    IndexUniqueIds unique(&map, 3);
    const Results results = search(unique, {0}, 4);
    EXPECT_EQ(results.labels, (std::vector<idx_t>{7, 8, 9, -1}));
    EXPECT_EQ(results.distances[0], 0.25f);
    EXPECT_EQ(results.distances[1], 1.f);
    EXPECT_EQ(range_search(unique, {0}, 10.f)[0].size(), 3u);
}

/// As GPU indexes of cuVS answer: the right results in no order.
struct Unordered : faiss::IndexFlat {
    using IndexFlat::IndexFlat;

    void search(
            idx_t n,
            const float* x,
            idx_t k,
            float* distances,
            idx_t* labels,
            const faiss::SearchParameters* params) const override {
        IndexFlat::search(n, x, k, distances, labels, params);
        for (idx_t i = 0; i < n; i++) {
            std::reverse(distances + i * k, distances + (i + 1) * k);
            std::reverse(labels + i * k, labels + (i + 1) * k);
        }
    }
};

TEST(IndexUniqueIds, PutsResultsInOrder) {
    for (faiss::MetricType metric :
         {faiss::METRIC_L2, faiss::METRIC_INNER_PRODUCT}) {
        Unordered flat(1, metric);
        faiss::IndexIDMap map(&flat);
        const std::vector<float> rows = {4, 1, 3, 2, 5, 0.5f};
        const std::vector<idx_t> ids = {7, 8, 7, 9, 8, 7};
        map.add_with_ids(6, rows.data(), ids.data());
        IndexUniqueIds unique(&map, 3);
        const Results results = search(unique, {0.25f}, 4);
        expect_well_formed(results, metric);
        const bool l2 = metric == faiss::METRIC_L2;
        EXPECT_EQ(
                results.labels,
                (l2 ? std::vector<idx_t>{7, 8, 9, -1}
                    : std::vector<idx_t>{8, 7, 9, -1}));
        EXPECT_EQ(results.distances[0], l2 ? 0.0625f : 1.25f);
    }
}

TEST(IndexUniqueIds, TransformsFirst) {
    faiss::IndexFlatL2 flat(kDim);
    IndexUniqueIds unique(&flat, 2);
    auto* rotation = new faiss::RandomRotationMatrix(kDim, kDim);
    rotation->init(5);
    unique.prepend_transform(rotation);
    unique.add(kRows, base_rows().data());
    EXPECT_EQ(unique.ntotal, kRows);
    const Results results = search(unique, base_rows(), 1);
    EXPECT_EQ(results.labels[5], 5);
    delete rotation;
    unique.chain.clear();
}

TEST(IndexUniqueIds, RefusesWhatItCannotDo) {
    faiss::IndexFlatL2 flat(kDim);
    flat.add(kRows, base_rows().data());
    EXPECT_NE(message_of([&] { IndexUniqueIds bad(&flat, 0); }), "");
    IndexUniqueIds unique(&flat);
    std::vector<float> distances(1), recons(kDim);
    std::vector<idx_t> labels(1);
    EXPECT_NE(
            message_of([&] {
                unique.search_and_reconstruct(
                        1,
                        base_rows().data(),
                        1,
                        distances.data(),
                        labels.data(),
                        recons.data());
            }),
            "");
    EXPECT_NE(message_of([&] { search(unique, query_rows(), 0); }), "");
    unique.max_copies = -1;
    EXPECT_NE(message_of([&] { search(unique, query_rows(), 1); }), "");
}

} // namespace
} // namespace faiss_flashgmm
