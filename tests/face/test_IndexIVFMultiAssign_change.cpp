#include <faiss_flashgmm/IndexIVFMultiAssign.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

#include <faiss/impl/AuxIndexStructures.h>
#include <faiss/impl/IDSelector.h>

#include "face/multi_assign_cases.h"

// Removing, updating, direct maps, merging and copying.
namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;

using MapType = faiss::DirectMap::Type;

struct ChangeTest : ::testing::TestWithParam<Case> {
    MultiIndex index = make_filled(GetParam());
    const std::vector<float>& rows = base_rows();

    size_t entries_of(const std::vector<idx_t>& ids) const {
        size_t entries = 0;
        for (idx_t id : ids) {
            entries += lists_of(*index, id).size();
        }
        return entries;
    }

    void expect_gone(const std::vector<idx_t>& ids) const {
        EXPECT_EQ(entries_of(ids), 0u);
        const Results results = search(*index, rows, 5);
        expect_well_formed(results, index->metric_type);
        for (idx_t id : ids) {
            EXPECT_EQ(
                    std::count(
                            results.labels.begin(), results.labels.end(), id),
                    0);
        }
    }
};

INSTANTIATE_TEST_SUITE_P(
        MultiAssign,
        ChangeTest,
        ::testing::ValuesIn(some_cases()),
        case_name);

TEST_P(ChangeTest, RemovingTakesAllCopiesAndCountsVectors) {
    const std::vector<idx_t> ids = {5, 17, 18, 999, 0};
    for (MapType type : {MapType::NoMap, MapType::Hashtable}) {
        MultiIndex fresh = copy_of_empty(index);
        std::swap(index, fresh);
        index->add(kRows, rows.data());
        set_direct_map_type(*index, type);
        const size_t before = index.multi->nentries();
        const size_t expected = before - entries_of(ids);
        const std::vector<idx_t> asked = {5, 17, 18, 999, 0, 5, 12345};
        EXPECT_EQ(
                index->remove_ids(
                        faiss::IDSelectorArray(asked.size(), asked.data())),
                ids.size());
        EXPECT_EQ(index->ntotal, kRows - idx_t(ids.size()));
        EXPECT_EQ(index.multi->nentries(), expected);
        expect_gone(ids);
        EXPECT_EQ(
                index->remove_ids(
                        faiss::IDSelectorArray(asked.size(), asked.data())),
                0u);
    }
}

TEST_P(ChangeTest, AnySelectorRemovesWithAnyMapThatAllowsIt) {
    for (MapType type : {MapType::NoMap, MapType::Hashtable}) {
        MultiIndex fresh = copy_of_empty(index);
        std::swap(index, fresh);
        index->add(kRows, rows.data());
        set_direct_map_type(*index, type);
        EXPECT_EQ(index->remove_ids(faiss::IDSelectorRange(100, 200)), 100u);
        EXPECT_EQ(
                index->remove_ids(
                        Selector([](idx_t id) { return id % 3 == 0; })),
                301u);
        EXPECT_EQ(index->ntotal, 599);
        std::vector<float> row(kDim);
        for (idx_t id = 0; id < kRows; id++) {
            const bool removed = id % 3 == 0 || (id >= 100 && id < 200);
            ASSERT_EQ(lists_of(*index, id).empty(), removed);
            if (type == MapType::Hashtable && !removed) {
                index->reconstruct(id, row.data());
                if (GetParam().codec == Codec::flat) {
                    ASSERT_TRUE(std::equal(
                            row.begin(), row.end(), &rows[id * kDim]));
                }
            }
        }
        EXPECT_EQ(
                index->remove_ids(Selector([](idx_t) { return true; })), 599u);
        EXPECT_EQ(index->ntotal, 0);
        EXPECT_EQ(index.multi->nentries(), 0u);
        index->add(kRows, rows.data());
        EXPECT_EQ(index->ntotal, kRows);
    }
}

TEST_P(ChangeTest, WhatIsLeftAfterRemovalEqualsAnIndexWithoutIt) {
    std::vector<float> left;
    std::vector<idx_t> ids;
    for (idx_t id = 0; id < kRows; id++) {
        if (id % 4 != 1) {
            ids.push_back(id);
            left.insert(left.end(), &rows[id * kDim], &rows[(id + 1) * kDim]);
        }
    }
    index->remove_ids(Selector([](idx_t id) { return id % 4 == 1; }));
    index->nprobe = 4;
    Oracle(index, left, ids).expect_equal(*index, query_rows(), 20);
}

TEST_P(ChangeTest, SingleEntriesAreRemovedThroughTheHashtable) {
    MultiIndex single = copy_of_empty(index);
    single.multi->assigner.policy = AssignPolicy::single;
    set_direct_map_type(*single, MapType::Hashtable);
    single->add(kRows, rows.data());
    const idx_t ids[] = {3, 4, 3};
    EXPECT_EQ(single->remove_ids(faiss::IDSelectorArray(3, ids)), 2u);
    EXPECT_EQ(single->ntotal, kRows - 2);
    EXPECT_EQ(single.multi->nentries(), size_t(kRows - 2));
}

TEST_P(ChangeTest, RemovalThatCannotBeDoneChangesNothing) {
    set_direct_map_type(*index, MapType::Array);
    const size_t entries = index.multi->nentries();
    EXPECT_NE(
            message_of(
                    [&] { index->remove_ids(faiss::IDSelectorRange(0, 10)); }),
            "");
    set_direct_map_type(*index, MapType::NoMap);
    EXPECT_THROW(
            index->remove_ids(Selector([](idx_t id) -> bool {
                if (id == 900) {
                    throw std::runtime_error("selector");
                }
                return true;
            })),
            std::runtime_error);
    EXPECT_EQ(index->ntotal, kRows);
    EXPECT_EQ(index.multi->nentries(), entries);
}

TEST_P(ChangeTest, UpdatedVectorsAreFoundWhereTheyAreNowOnly) {
    for (MapType type : {MapType::Array, MapType::Hashtable}) {
        MultiIndex fresh = copy_of_empty(index);
        std::swap(index, fresh);
        set_direct_map_type(*index, type);
        index->add(kRows, rows.data());
        const std::vector<idx_t> ids = {5, 700, 31};
        std::vector<float> moved = clustered_rows(3, kDim, kLists, 77);
        index->update_vectors(3, ids.data(), moved.data());
        EXPECT_EQ(index->ntotal, kRows);

        std::vector<float> now = rows;
        for (int i = 0; i < 3; i++) {
            std::copy_n(&moved[i * kDim], kDim, &now[ids[i] * kDim]);
        }
        index->nprobe = kLists;
        Oracle(index, now).expect_equal(*index, now, 3);
        for (idx_t id = 0; id < kRows && GetParam().codec == Codec::flat;
             id++) {
            std::vector<float> row(kDim);
            index->reconstruct(id, row.data());
            ASSERT_TRUE(std::equal(row.begin(), row.end(), &now[id * kDim]));
        }
        if (type == MapType::Array) {
            index->add(1, rows.data());
            EXPECT_FALSE(lists_of(*index, kRows).empty());
        }
    }
}

TEST_P(ChangeTest, UpdatesThatCannotBeDoneChangeNothing) {
    const idx_t good[] = {1, 2};
    std::vector<float> moved(2 * kDim, 0.5f);
    auto update = [&](const idx_t* ids) {
        return message_of([&] { index->update_vectors(2, ids, moved.data()); });
    };
    const Results before = search(*index, query_rows(), 10);
    EXPECT_NE(update(good).find("direct map"), std::string::npos);
    for (MapType type : {MapType::Array, MapType::Hashtable}) {
        set_direct_map_type(*index, type);
        const idx_t twice[] = {4, 4}, missing[] = {4, kRows};
        EXPECT_NE(update(twice).find("twice"), std::string::npos);
        EXPECT_NE(update(missing).find("1000"), std::string::npos);
        moved[3] = NAN;
        EXPECT_NE(update(good).find("row 0, column 3"), std::string::npos);
        moved[3] = 0;
        index->update_vectors(0, nullptr, nullptr);
    }
    EXPECT_EQ(search(*index, query_rows(), 10), before);
}

TEST_P(ChangeTest, ResetForgetsVectorsAndKeepsTraining) {
    set_direct_map_type(*index, MapType::Hashtable);
    index->nprobe = 4;
    const Results before = search(*index, query_rows(), 10);
    index->reset();
    EXPECT_EQ(index->ntotal, 0);
    EXPECT_EQ(index.multi->nentries(), 0u);
    EXPECT_TRUE(index->is_trained);
    EXPECT_EQ(search(*index, query_rows(), 1).labels[0], -1);
    index->add(kRows, rows.data());
    EXPECT_EQ(search(*index, query_rows(), 10), before);
}

TEST_P(ChangeTest, AMapMadeLaterPointsToACopy) {
    for (MapType type : {MapType::Array, MapType::Hashtable}) {
        set_direct_map_type(*index, type);
        for (idx_t id = 0; id < kRows; id++) {
            const idx_t place = index->direct_map.get(id);
            ASSERT_EQ(
                    index->invlists->get_single_id(
                            faiss::lo_listno(place), faiss::lo_offset(place)),
                    id);
        }
    }
    if (GetParam().codec == Codec::flat) {
        std::vector<float> all(kRows * kDim);
        index->reconstruct_n(0, kRows, all.data());
        EXPECT_EQ(all, rows);
        index->reconstruct_n(0, 0, nullptr);
    }
}

TEST_P(ChangeTest, AMapThatCannotBeMadeLeavesTheOldOne) {
    std::vector<float> row(kDim);
    EXPECT_NE(
            message_of([&] {
                index->reconstruct(3, row.data());
            }).find("make_direct_map"),
            std::string::npos);
    const idx_t id = GetParam().offer().negative_ids ? -8 : idx_t(1) << 50;
    index->add_with_ids(1, rows.data(), &id);
    set_direct_map_type(*index, MapType::Hashtable);
    EXPECT_NE(
            message_of([&] { set_direct_map_type(*index, MapType::Array); }),
            "");
    EXPECT_EQ(index->direct_map.type, MapType::Hashtable);
    index->reconstruct(id, row.data());
    EXPECT_NE(message_of([&] { index->reconstruct(-9, row.data()); }), "");
}

TEST_P(ChangeTest, MergedIndexesEqualOneIndex) {
    MultiIndex whole = copy_of_empty(index), a = copy_of_empty(index),
               b = copy_of_empty(index);
    whole->add(kRows, rows.data());
    a->add(400, rows.data());
    b->add(600, rows.data() + 400 * kDim);
    a->merge_from(*b, 400);
    EXPECT_EQ(a->ntotal, kRows);
    EXPECT_EQ(a.multi->nentries(), whole.multi->nentries());
    EXPECT_EQ(b->ntotal, 0);
    EXPECT_EQ(b.multi->nentries(), 0u);
    EXPECT_EQ(b.multi->entries_per_vector(), 1);
    EXPECT_EQ(search(*b, query_rows(), 1).labels[0], -1);
    a->nprobe = whole->nprobe = 4;
    EXPECT_EQ(
            search(*a, query_rows(), 20).distances,
            search(*whole, query_rows(), 20).distances);
    expect_well_formed(search(*a, query_rows(), 20), a->metric_type);
    a->add(1, rows.data());
    EXPECT_FALSE(lists_of(*a, kRows).empty());
    b->add(1, rows.data()); // still usable
    EXPECT_EQ(b->ntotal, 1);
}

TEST_P(ChangeTest, MergingIntoASingleAssignedIndexKeepsResultsUnique) {
    MultiIndex single = copy_of_empty(index);
    single.multi->assigner.policy = AssignPolicy::single;
    single->add(10, rows.data());
    single->merge_from(*index, 10);
    single->nprobe = kLists;
    const Results results = search(*single, query_rows(), kRows + 10);
    expect_well_formed(results, single->metric_type);
    EXPECT_EQ(std::count(results.labels.begin(), results.labels.end(), -1), 0);
}

TEST_P(ChangeTest, MergesThatMakeNoSenseChangeNothing) {
    MultiIndex other = copy_of_empty(index);
    other->add(100, rows.data());
    auto merge = [&](faiss::Index& from, idx_t add_id) {
        return message_of([&] { index->merge_from(from, add_id); });
    };
    EXPECT_NE(merge(*other, 0).find("both"), std::string::npos);
    EXPECT_NE(merge(*other, -50).find("not a valid id"), std::string::npos);
    EXPECT_NE(
            merge(*other, std::numeric_limits<idx_t>::max())
                    .find("not a valid id"),
            std::string::npos);
    EXPECT_NE(merge(*index, kRows), "");
    const auto stock = stock_twin(*index);
    EXPECT_NE(merge(*stock, kRows), "");
    set_direct_map_type(*other, MapType::Hashtable);
    EXPECT_NE(merge(*other, kRows), "");
    EXPECT_EQ(index->ntotal, kRows);
    EXPECT_EQ(other->ntotal, 100);
}

TEST_P(ChangeTest, SubsetsByIdKeepBothCopies) {
    for (int type : {0, 1}) {
        const idx_t a1 = type == 0 ? 200 : 3, a2 = type == 0 ? 500 : 1;
        const auto in_subset = [&](idx_t id) {
            return type == 0 ? a1 <= id && id < a2 : id % a1 == a2;
        };
        MultiIndex subset = copy_of_empty(index);
        index->copy_subset_to(*subset, SubsetType(type), a1, a2);
        idx_t expected = 0;
        for (idx_t id = 0; id < kRows; id++) {
            expected += in_subset(id);
            if (in_subset(id)) {
                ASSERT_EQ(lists_of(*subset, id), lists_of(*index, id));
            } else {
                ASSERT_TRUE(lists_of(*subset, id).empty());
            }
        }
        EXPECT_EQ(subset->ntotal, expected);
        expect_well_formed(
                search(*subset, query_rows(), 30), subset->metric_type);
        EXPECT_NE(
                message_of([&] {
                    index->copy_subset_to(*subset, SubsetType(type), a1, a2);
                }),
                ""); // now it holds these ids
    }
}

TEST_P(ChangeTest, OtherSubsetsAndOtherTargetsAreRefused) {
    MultiIndex subset = copy_of_empty(index);
    auto copy = [&](faiss::IndexIVF& target, int type, idx_t a1, idx_t a2) {
        return message_of([&] {
            index->copy_subset_to(target, SubsetType(type), a1, a2);
        });
    };
    EXPECT_NE(copy(*subset, 2, 0, kRows / 2), "");
    EXPECT_NE(copy(*subset, 1, 0, 0), "");
    EXPECT_NE(copy(*index, 0, 0, 10), "");
    const auto stock = stock_twin(*index);
    EXPECT_NE(copy(*stock, 0, 0, kRows), "");
    EXPECT_EQ(stock->ntotal, 0);
    EXPECT_EQ(subset->ntotal, 0);

    MultiIndex single = copy_of_empty(index);
    single.multi->assigner.policy = AssignPolicy::single;
    single->add(kRows, rows.data());
    for (int type : {0, 2}) {
        stock->reset();
        if (type == 2 && GetParam().offer().blocks) {
            EXPECT_NE(
                    message_of([&] {
                        single->copy_subset_to(
                                *stock, SubsetType(type), 0, 300);
                    }),
                    "");
            continue;
        }
        single->copy_subset_to(*stock, SubsetType(type), 0, 300);
        EXPECT_EQ(stock->ntotal, 300);
    }
    EXPECT_NE(
            message_of([&] {
                single->copy_subset_to(*stock, SubsetType(9), 0, 300);
            }),
            "");
}

} // namespace
} // namespace faiss_flashgmm
