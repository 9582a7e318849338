#include <faiss_flashgmm/stock_index.h>

#include <unistd.h>

#include <filesystem>

#include <gtest/gtest.h>

#include <faiss/IndexFlat.h>
#include <faiss/IndexIDMap.h>
#include <faiss/IndexShards.h>
#include <faiss/index_io.h>

#include <faiss_flashgmm/MultiAssignCloner.h>
#include <faiss_flashgmm/index_tree.h>
#include <faiss_flashgmm/train_ivf.h>

#include "face/lists_on_disk.h"
#include "face/multi_assign_cases.h"

namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;

struct StockIndexTest : ::testing::TestWithParam<Case> {
    MultiIndex index = make_filled(GetParam());
};

INSTANTIATE_TEST_SUITE_P(
        MultiAssign,
        StockIndexTest,
        ::testing::ValuesIn(some_cases()),
        case_name);

size_t entries_of(const faiss::Index& index) {
    return extract_index_ivf(&index)->invlists->compute_ntotal();
}

TEST_P(StockIndexTest, SingleIsTheIndexWithoutCopies) {
    auto stock = to_stock(*index);
    EXPECT_EQ(dynamic_cast<IVFMultiAssign*>(stock.get()), nullptr);
    EXPECT_EQ(stock->ntotal, kRows);
    EXPECT_EQ(entries_of(*stock), size_t(kRows));

    // the index that stock FAISS would have filled
    const auto expected = stock_twin(*index);
    expected->add(kRows, base_rows().data());
    size_t same_list = 0;
    for (idx_t id = 0; id < kRows; id++) {
        same_list += lists_of(*extract_index_ivf(stock.get()), id) ==
                lists_of(*expected, id);
    }
    if (GetParam().codec == Codec::flat) {
        EXPECT_EQ(same_list, size_t(kRows));
        extract_index_ivf(stock.get())->nprobe = 4;
        expected->nprobe = 4;
        EXPECT_EQ(
                search(*stock, query_rows(), 10).distances,
                search(*expected, query_rows(), 10).distances);
    } else {
        EXPECT_GT(same_list, size_t(0.8 * kRows));
    }
    faiss::VectorIOWriter writer;
    faiss::write_index(stock.get(), &writer);
}

TEST_P(StockIndexTest, AllIsTheStockIndexWithTheCopies) {
    auto stock = to_stock(*index, StockCopies::all);
    EXPECT_EQ(dynamic_cast<IVFMultiAssign*>(stock.get()), nullptr);
    EXPECT_EQ(stock->ntotal, kRows);
    EXPECT_EQ(entries_of(*stock), index.multi->nentries());

    auto again = from_stock(*stock, index.multi->assigner);
    auto* multi = dynamic_cast<IVFMultiAssign*>(again.get());
    ASSERT_NE(multi, nullptr);
    EXPECT_EQ(again->ntotal, kRows);
    EXPECT_EQ(multi->nentries(), index.multi->nentries());
    EXPECT_EQ(
            search(*again, query_rows(), 10), search(*index, query_rows(), 10));
    // the stock index is another object, and still there
    EXPECT_EQ(entries_of(*stock), index.multi->nentries());
}

TEST(StockIndex, DirectMapsFollow) {
    MultiIndex index = make_filled(
            {Codec::flat, faiss::METRIC_L2, AssignPolicy::posterior});
    for (auto type : {faiss::DirectMap::Array, faiss::DirectMap::Hashtable}) {
        set_direct_map_type(*index, type);
        auto stock = to_stock(*index);
        std::vector<float> row(kDim), expected(kDim);
        for (idx_t id = 0; id < kRows; id += 50) {
            index->reconstruct(id, expected.data());
            stock->reconstruct(id, row.data());
            EXPECT_EQ(row, expected);
        }
    }
}

TEST_P(StockIndexTest, AClonedIndexIsTheSameAndAnother) {
    index->nprobe = 4;
    index->parallel_mode = 3;
    index->max_codes = 12345;
    const Results expected = search(*index, query_rows(), 10);
    MultiAssignCloner cloner;
    std::unique_ptr<faiss::Index> clone(cloner.clone_Index(index.ivf.get()));
    auto& ivf = dynamic_cast<faiss::IndexIVF&>(*clone);
    auto& multi = dynamic_cast<IVFMultiAssign&>(*clone);
    EXPECT_EQ(typeid(*clone), typeid(*index));
    EXPECT_EQ(multi.assigner.policy, index.multi->assigner.policy);
    EXPECT_EQ(multi.mixture().variances, index.multi->mixture().variances);
    EXPECT_EQ(multi.em_stats.size(), index.multi->em_stats.size());
    EXPECT_EQ(ivf.parallel_mode, 3);
    EXPECT_EQ(ivf.max_codes, 12345u);
    EXPECT_EQ(search(*clone, query_rows(), 10), expected);
    index->reset();
    EXPECT_EQ(search(*clone, query_rows(), 10), expected);
}

TEST(StockIndex, GoesThroughWrappersAndShards) {
    const Case c{Codec::flat, faiss::METRIC_L2, AssignPolicy::nearest};
    MultiIndex first = make_trained(c), second = make_filled(c);
    faiss::IndexIDMap map(first.ivf.get());
    std::vector<idx_t> ids(kRows);
    for (idx_t i = 0; i < kRows; i++) {
        ids[i] = 10 * i;
    }
    map.add_with_ids(kRows, base_rows().data(), ids.data());
    auto stock = to_stock(map);
    EXPECT_EQ(find_multi_assign(*stock), nullptr);
    EXPECT_EQ(entries_of(*stock), size_t(kRows));
    auto again = from_stock(*stock);
    EXPECT_NE(find_multi_assign(*again), nullptr);

    faiss::IndexShards shards(kDim);
    shards.add_shard(second.ivf.get());
    auto stock_shards = to_stock(shards);
    EXPECT_EQ(entries_of(*stock_shards), size_t(kRows));
    EXPECT_EQ(stock_shards->ntotal, kRows);
    auto clone = clone_index(shards);
    EXPECT_NE(find_multi_assign(*clone), nullptr);
}

TEST(StockIndex, ListsOnDiskAreNotTouched) {
    MultiIndex index =
            make_filled({Codec::flat, faiss::METRIC_L2, AssignPolicy::nearest});
    const std::string name = ::testing::TempDir() + "stock_index_lists_" +
            std::to_string(::testing::UnitTest::GetInstance()->random_seed()) +
            std::to_string(getpid());
    put_lists_on_disk(*index, name);
    auto stock = to_stock(*index);
    EXPECT_EQ(entries_of(*stock), size_t(kRows));
    EXPECT_EQ(index.multi->nentries(), size_t(2 * kRows));
    expect_well_formed(search(*index, query_rows(), 10), faiss::METRIC_L2);
    std::filesystem::remove(name);
}

TEST(StockIndex, AQuantizerThatTrainsItselfBecomesOneOfKMeans) {
    IndexFlatGMM quantizer(kDim, kLists);
    faiss::IndexIVFFlat ivf(&quantizer, kDim, kLists);
    ivf.quantizer_trains_alone = 1;
    auto stock = to_stock(ivf);
    stock->train(kRows, base_rows().data());
    stock->add(kRows, base_rows().data());
    EXPECT_EQ(stock->ntotal, kRows);
}

TEST(StockIndex, WhatCannotBeConvertedThrows) {
    faiss::IndexFlatL2 flat(kDim);
    EXPECT_NE(message_of([&] { from_stock(flat); }), "");
}

} // namespace
} // namespace faiss_flashgmm
