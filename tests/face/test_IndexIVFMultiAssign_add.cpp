#include <faiss_flashgmm/IndexIVFMultiAssign.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>

#include <gtest/gtest.h>

#include <faiss/IndexFlat.h>
#include <faiss/invlists/BlockInvertedLists.h>

#include "face/multi_assign_cases.h"

namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;

constexpr idx_t kLargestId = std::numeric_limits<idx_t>::max();

struct AddTest : ::testing::TestWithParam<Case> {
    MultiIndex index = make_trained(GetParam());
    const std::vector<float>& rows = base_rows();
};

INSTANTIATE_TEST_SUITE_P(
        MultiAssign,
        AddTest,
        ::testing::ValuesIn(some_cases()),
        case_name);

std::vector<float> first_rows(idx_t n) {
    return {base_rows().begin(), base_rows().begin() + n * kDim};
}

TEST_P(AddTest, StoresEachVectorInItsListsAndCountsItOnce) {
    index->add(kRows, rows.data());
    const std::vector<idx_t> lists = assigned_lists(index, rows);
    size_t entries = 0;
    for (idx_t i = 0; i < kRows; i++) {
        std::vector<size_t> expected;
        for (int j = 0; j < 2; j++) {
            if (lists[2 * i + j] >= 0) {
                expected.push_back(lists[2 * i + j]);
            }
        }
        ASSERT_NE(lists[2 * i], lists[2 * i + 1]);
        entries += expected.size();
        std::sort(expected.begin(), expected.end());
        ASSERT_EQ(lists_of(*index, i), expected) << "id " << i;
    }
    EXPECT_EQ(index->ntotal, kRows);
    EXPECT_EQ(index.multi->nentries(), entries);
    EXPECT_EQ(
            index.multi->entries_per_vector(), double(entries) / double(kRows));
    EXPECT_GT(entries, size_t(kRows));
    EXPECT_LE(entries, size_t(2 * kRows));
    EXPECT_EQ(
            entries == size_t(2 * kRows),
            GetParam().policy == AssignPolicy::nearest);
}

TEST_P(AddTest, ThePrimaryListIsTheOneThatIsProbedFirst) {
    std::vector<idx_t> probed(kRows);
    index->quantizer->assign(kRows, rows.data(), probed.data());
    const std::vector<idx_t> lists = assigned_lists(index, rows);
    for (idx_t i = 0; i < kRows; i++) {
        ASSERT_EQ(lists[2 * i], probed[i]);
    }
}

TEST_P(AddTest, PiecesAddUpToTheWhole) {
    MultiIndex pieces = copy_of_empty(index);
    index->add(kRows, rows.data());
    for (idx_t i = 0; i < kRows; i += 300) {
        pieces->add(std::min<idx_t>(300, kRows - i), rows.data() + i * kDim);
    }
    index->nprobe = pieces->nprobe = 4;
    EXPECT_EQ(pieces->ntotal, kRows);
    EXPECT_EQ(pieces.multi->nentries(), index.multi->nentries());
    EXPECT_EQ(
            search(*pieces, query_rows(), 50).distances,
            search(*index, query_rows(), 50).distances);
}

TEST_P(AddTest, ListsStaySortedById) {
    index->add(kRows, rows.data());
    EXPECT_TRUE(index->check_ids_sorted());
}

TEST_P(AddTest, AnyIdMayBeGivenButTheOneThatMeansNone) {
    std::vector<idx_t> ids = {-5, idx_t(1) << 62, 0, kLargestId};
    if (!GetParam().offer().negative_ids) {
        EXPECT_NE(
                message_of([&] {
                    index->add_with_ids(4, rows.data(), ids.data());
                }),
                "");
        ids[0] = 5;
    }
    set_direct_map_type(*index, faiss::DirectMap::Hashtable);
    index->add_with_ids(4, rows.data(), ids.data());
    index->nprobe = kLists;
    const Results results = search(*index, first_rows(4), 4);
    expect_well_formed(results, index->metric_type);
    const std::set<idx_t> expected(ids.begin(), ids.end());
    for (int i = 0; i < 4; i++) {
        const std::set<idx_t> found(
                results.labels.begin() + 4 * i,
                results.labels.begin() + 4 * i + 4);
        EXPECT_EQ(found, expected);
        std::vector<float> row(kDim);
        index->reconstruct(ids[i], row.data());
        if (GetParam().codec == Codec::flat) {
            EXPECT_TRUE(std::equal(
                    row.begin(), row.end(), rows.begin() + i * kDim));
        }
    }
    // there is no id after the largest one
    EXPECT_NE(
            message_of([&] {
                index->add(1, rows.data());
            }).find("add_with_ids"),
            std::string::npos);
    const idx_t none = -1;
    EXPECT_NE(
            message_of([&] {
                index->add_with_ids(1, rows.data(), &none);
            }).find("-1"),
            std::string::npos);
    EXPECT_EQ(index->ntotal, 4);
}

TEST_P(AddTest, OwnIdsGoOnAfterTheLargestIdEverAdded) {
    index->add(10, rows.data());
    const idx_t three[] = {2, 5, 7};
    index->remove_ids(faiss::IDSelectorArray(3, three));
    EXPECT_EQ(index->ntotal, 7);
    index->add(2, rows.data());
    EXPECT_FALSE(lists_of(*index, 10).empty());
    EXPECT_FALSE(lists_of(*index, 11).empty());

    const idx_t given = 1000;
    index->add_with_ids(1, rows.data(), &given);
    index->add(1, rows.data());
    EXPECT_FALSE(lists_of(*index, 1001).empty());
    index->reset();
    index->add(1, rows.data());
    EXPECT_FALSE(lists_of(*index, 0).empty());
}

TEST_P(AddTest, AValueThatIsNotFiniteIsNamedAndNothingIsAdded) {
    index->add(10, rows.data());
    const Results before = search(*index, query_rows(), 5);
    for (float bad : {NAN, INFINITY, -INFINITY}) {
        std::vector<float> some = first_rows(100);
        some[7 * kDim + 2] = bad;
        const std::string message =
                message_of([&] { index->add(100, some.data()); });
        EXPECT_NE(message.find("row 7, column 2"), std::string::npos)
                << message;
    }
    EXPECT_EQ(index->ntotal, 10);
    EXPECT_EQ(search(*index, query_rows(), 5), before);
}

TEST_P(AddTest, NoRowsAreNoOperation) {
    index->add(0, nullptr);
    index->add_with_ids(0, nullptr, nullptr);
    index->add_core(0, nullptr, nullptr, &kRows);
    EXPECT_EQ(index->ntotal, 0);
    EXPECT_EQ(index.multi->nentries(), 0u);
    EXPECT_NE(message_of([&] { index->add(-1, rows.data()); }), "");
}

TEST_P(AddTest, GivenListsAreThePrimaryOnes) {
    std::vector<idx_t> lists(kRows);
    for (idx_t i = 0; i < kRows; i++) {
        lists[i] = i % (kLists + 1) - 1; // some in no list
    }
    index->add_core(kRows, rows.data(), nullptr, lists.data());
    EXPECT_EQ(index->ntotal, kRows); // as stock FAISS counts
    for (idx_t i = 0; i < kRows; i++) {
        const std::vector<size_t> stored = lists_of(*index, i);
        if (lists[i] < 0) {
            ASSERT_TRUE(stored.empty());
        } else {
            ASSERT_TRUE(std::count(stored.begin(), stored.end(), lists[i]));
        }
    }
    index->nprobe = kLists;
    expect_well_formed(search(*index, query_rows(), kRows), index->metric_type);

    lists[5] = kLists;
    EXPECT_NE(
            message_of([&] {
                index->add_core(kRows, rows.data(), nullptr, lists.data());
            }).find("vector 5"),
            std::string::npos);
    EXPECT_NE(
            message_of([&] {
                index->add_core(kRows, rows.data(), nullptr, nullptr);
            }),
            "");
    EXPECT_EQ(index->ntotal, kRows);
}

TEST_P(AddTest, RowsInNoListAndRowsInTwoAreNotMixedUp) {
    index.multi->assigner.policy = AssignPolicy::nearest;
    const idx_t lists[] = {-1, 4, 7, -1}; // four entries of four rows
    index->add_core(4, rows.data(), nullptr, lists);
    MultiIndex stored = copy_of_empty(index);
    stored.multi->assigner.policy = AssignPolicy::nearest;
    const idx_t ids[] = {1, 2};
    stored->add_core(2, rows.data() + kDim, ids, lists + 1);
    ASSERT_EQ(index.multi->nentries(), 4u);
    index->nprobe = stored->nprobe = kLists;
    EXPECT_EQ(
            search(*index, query_rows(), 2), search(*stored, query_rows(), 2));
}

TEST_P(AddTest, ARowInNoListLeavesTheDirectMapUsable) {
    for (auto type : {faiss::DirectMap::Array, faiss::DirectMap::Hashtable}) {
        index->reset();
        set_direct_map_type(*index, type);
        const idx_t lists[] = {3, -1, 4, -1};
        index->add_core(4, rows.data(), nullptr, lists);
        index->add(2, rows.data());
        EXPECT_EQ(index->ntotal, 6);
        std::vector<float> row(kDim);
        for (idx_t id : {0, 2, 4, 5}) {
            index->reconstruct(id, row.data());
        }
        for (idx_t id : {1, 3}) {
            EXPECT_NE(
                    message_of([&] { index->reconstruct(id, row.data()); }),
                    "");
        }
        if (type == faiss::DirectMap::Array) {
            const idx_t id = 1; // gets a list now
            index->update_vectors(1, &id, rows.data());
            index->reconstruct(id, row.data());
            EXPECT_EQ(index->ntotal, 6);
        }
    }
}

TEST_P(AddTest, APolicyAppliesToLaterAdds) {
    index.multi->assigner.policy = AssignPolicy::single;
    index->add(200, rows.data());
    EXPECT_EQ(index.multi->nentries(), 200u);
    index.multi->assigner.policy = AssignPolicy::nearest;
    index->add(200, rows.data() + 200 * kDim);
    EXPECT_EQ(index.multi->nentries(), 600u);
    index.multi->assigner.policy = AssignPolicy::posterior;
    index->add(200, rows.data() + 400 * kDim);
    EXPECT_GE(index.multi->nentries(), 800u);
    EXPECT_EQ(index->ntotal, 600);
    index->nprobe = kLists;
    const Results results = search(*index, query_rows(), 600);
    expect_well_formed(results, index->metric_type);
    EXPECT_EQ(std::count(results.labels.begin(), results.labels.end(), -1), 0);
}

TEST_P(AddTest, ADirectMapFromTheStartPointsToThePrimaryCopy) {
    const auto stock = stock_twin(*index);
    for (auto type : {faiss::DirectMap::Array, faiss::DirectMap::Hashtable}) {
        index->reset();
        stock->reset();
        set_direct_map_type(*index, type);
        stock->set_direct_map_type(type);
        index->add(kRows / 2, rows.data());
        index->add(kRows / 2, rows.data() + kRows / 2 * kDim);
        // a stock hashtable needs the ids to be given
        std::vector<idx_t> ids(kRows);
        std::iota(ids.begin(), ids.end(), 0);
        stock->add_with_ids(
                kRows,
                rows.data(),
                type == faiss::DirectMap::Array ? nullptr : ids.data());
        for (idx_t id = 0; id < kRows; id++) {
            std::vector<float> ours(kDim), theirs(kDim);
            index->reconstruct(id, ours.data());
            if (GetParam().codec == Codec::rabitq_fast_scan) {
                // stock FAISS reads beyond the first block wrongly
                std::vector<uint8_t> code(index->sa_code_size());
                index->sa_encode(1, &rows[id * kDim], code.data());
                index->sa_decode(1, code.data(), theirs.data());
            } else {
                stock->reconstruct(id, theirs.data());
            }
            ASSERT_EQ(ours, theirs) << "id " << id;
        }
        if (type == faiss::DirectMap::Array) {
            const idx_t id = 5000;
            EXPECT_NE(
                    message_of(
                            [&] { index->add_with_ids(1, rows.data(), &id); }),
                    "");
            EXPECT_EQ(index->ntotal, kRows);
        }
    }
}

TEST_P(AddTest, AStandaloneCodeIsStoredInTheListThatItNames) {
    const idx_t n = 100;
    std::vector<uint8_t> codes(n * index->sa_code_size());
    index->sa_encode(n, rows.data(), codes.data());
    const auto stock = stock_twin(*index);
    stock->add(n, rows.data());
    auto add_codes = [&](const idx_t* ids) {
        as_its_type(*index, [&](auto& typed) {
            typed.add_sa_codes(n, codes.data(), ids);
        });
    };
    add_codes(nullptr);
    EXPECT_EQ(index->ntotal, n);
    EXPECT_EQ(index.multi->nentries(), size_t(n));
    EXPECT_EQ(search(*index, query_rows(), 5), search(*stock, query_rows(), 5));
    index->add(1, rows.data());
    EXPECT_FALSE(lists_of(*index, n).empty());

    std::vector<idx_t> ids(n, 7);
    ids[3] = -1;
    EXPECT_NE(message_of([&] { add_codes(ids.data()); }), "");
    codes[2 * index->sa_code_size()] = 0xff; // no such list
    EXPECT_NE(message_of([&] { add_codes(nullptr); }), "");
    EXPECT_EQ(index->ntotal, n + 1);
}

/// Lists that fail to take one id.
struct FullLists : faiss::ArrayInvertedLists {
    using ArrayInvertedLists::ArrayInvertedLists;
    size_t add_entries(
            size_t list,
            size_t n,
            const idx_t* ids,
            const uint8_t* codes) override {
        if (std::count(ids, ids + n, 61)) {
            throw std::runtime_error("disk full");
        }
        return ArrayInvertedLists::add_entries(list, n, ids, codes);
    }
};

struct FullBlocks : faiss::BlockInvertedLists {
    bool full = false;
    using BlockInvertedLists::BlockInvertedLists;
    void resize(size_t list, size_t size) override {
        if (full && list % 4 == 1 && size > list_size(list)) {
            throw std::runtime_error("disk full");
        }
        BlockInvertedLists::resize(list, size);
    }
};

TEST_P(AddTest, ListsThatFailLeaveTheIndexAsItWas) {
    FullBlocks* blocks = nullptr;
    const auto* stock_blocks =
            dynamic_cast<faiss::BlockInvertedLists*>(index->invlists);
    if (stock_blocks) {
        blocks = new FullBlocks(
                kLists, stock_blocks->n_per_block, stock_blocks->block_size);
        index->replace_invlists(blocks, true);
    } else {
        index->replace_invlists(new FullLists(kLists, index->code_size), true);
    }
    index->add(50, rows.data());
    const size_t entries = index.multi->nentries();
    const Results before = search(*index, query_rows(), 5);
    if (blocks) {
        blocks->full = true;
    }
    EXPECT_THROW(index->add(50, rows.data()), std::runtime_error);
    if (blocks) {
        blocks->full = false;
    }
    EXPECT_EQ(index->ntotal, 50);
    EXPECT_EQ(index.multi->nentries(), entries);
    EXPECT_EQ(search(*index, query_rows(), 5), before);
    index->add(5, rows.data());
    EXPECT_EQ(index->ntotal, 55);
}

TEST(MultiAssignAdd, ManyRowsAreStoredInBlocks) {
    const idx_t n = 40000;
    const int d = 4;
    const std::vector<float> rows = clustered_rows(n, d, 64, 11);
    MultiIndex index = make_untrained(
            {Codec::flat, faiss::METRIC_L2, AssignPolicy::posterior}, d, 64);
    index->train(4000, rows.data());
    index->add(n, rows.data());
    EXPECT_EQ(index->ntotal, n);
    const std::vector<idx_t> lists = assigned_lists(index, rows);
    const size_t entries = 2 * n - std::count(lists.begin(), lists.end(), -1);
    EXPECT_EQ(index.multi->nentries(), entries);
    EXPECT_TRUE(index->check_ids_sorted());
    const Results results = search(*index, rows, 1);
    idx_t themselves = 0;
    for (idx_t i = 0; i < n; i++) {
        themselves += results.labels[i] == i;
    }
    EXPECT_EQ(themselves, n);
}

TEST(MultiAssignAdd, PosteriorWithoutAMixtureThrows) {
    MultiIndex index = make_untrained(
            {Codec::flat, faiss::METRIC_L2, AssignPolicy::posterior});
    index->quantizer->add(kLists, base_rows().data());
    index->is_trained = true; // what a stock constructor does then
    EXPECT_NE(
            message_of([&] {
                index->add(kRows, base_rows().data());
            }).find("set_mixture"),
            std::string::npos);
    index.multi->assigner.policy = AssignPolicy::nearest;
    index->add(kRows, base_rows().data());
    EXPECT_EQ(index->ntotal, kRows);
}

TEST(MultiAssignAdd, OtherMetricsAreRefused) {
    faiss::IndexFlat quantizer(kDim, faiss::METRIC_L1);
    quantizer.add(kLists, base_rows().data());
    IndexIVFFlatMultiAssign index(&quantizer, kDim, kLists, faiss::METRIC_L1);
    index.assigner.policy = AssignPolicy::single;
    EXPECT_NE(message_of([&] { index.train(kRows, base_rows().data()); }), "");
    EXPECT_NE(message_of([&] { index.add(kRows, base_rows().data()); }), "");
    EXPECT_NE(message_of([&] { search(index, query_rows(), 1); }), "");
}

TEST(MultiAssignAdd, StatisticsTellListsApart) {
    const MultiIndex index = make_filled(
            {Codec::flat, faiss::METRIC_L2, AssignPolicy::posterior});
    const ListStatistics statistics = index.multi->list_statistics();
    std::vector<size_t> exclusive(kLists);
    size_t entries = 0;
    for (idx_t i = 0; i < kRows; i++) {
        const std::vector<size_t> lists = lists_of(*index, i);
        entries += lists.size();
        if (lists.size() == 1) {
            exclusive[lists[0]]++;
        }
    }
    EXPECT_EQ(statistics.exclusive, exclusive);
    size_t sum = 0;
    for (size_t list = 0; list < kLists; list++) {
        EXPECT_EQ(statistics.entries[list], index->get_list_size(list));
        sum += statistics.entries[list];
    }
    EXPECT_EQ(sum, entries);
    EXPECT_NEAR(
            statistics.imbalance, index->invlists->imbalance_factor(), 1e-9);
    EXPECT_GE(statistics.exclusive_imbalance, 1);
}

} // namespace
} // namespace faiss_flashgmm
