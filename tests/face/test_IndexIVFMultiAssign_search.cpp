#include <faiss_flashgmm/IndexIVFMultiAssign.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include <faiss/IVFlib.h>
#include <faiss/IndexFlat.h>
#include <faiss/impl/AuxIndexStructures.h>
#include <faiss/impl/IDSelector.h>

#include "face/multi_assign_cases.h"

namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;

/// A radius within which queries find some tens of rows.
float some_radius(const MultiIndex& index) {
    faiss::IndexFlat flat(kDim, index->metric_type);
    flat.add(kRows, base_rows().data());
    return search(flat, query_rows(), 40).distances[39];
}

struct SearchTest : ::testing::TestWithParam<Case> {
    MultiIndex index = make_filled(GetParam());
    const std::vector<float>& queries = query_rows();
    const Offer offer = GetParam().offer();
    const std::vector<int> modes =
            offer.blocks ? std::vector<int>{0} : std::vector<int>{0, 1, 2, 3};
    const std::vector<int> range_modes =
            offer.blocks ? std::vector<int>{0} : std::vector<int>{0, 1, 2};
};

struct SearchResultTest : SearchTest {};

INSTANTIATE_TEST_SUITE_P(
        MultiAssign,
        SearchResultTest,
        ::testing::ValuesIn(all_cases()),
        case_name);

INSTANTIATE_TEST_SUITE_P(
        MultiAssign,
        SearchTest,
        ::testing::ValuesIn(some_cases()),
        case_name);

TEST_P(SearchResultTest, EqualsStockIndexesOfFirstAndOfSecondListsMerged) {
    const Oracle oracle(index, base_rows());
    ASSERT_GT(index.multi->nentries(), size_t(kRows) * 11 / 10);
    for (int mode : modes) {
        index->parallel_mode = mode;
        for (size_t nprobe : {1, 4, kLists}) {
            index->nprobe = nprobe;
            for (idx_t k : {1, 10, 100}) {
                SCOPED_TRACE(
                        ::testing::Message() << "mode " << mode << " nprobe "
                                             << nprobe << " k " << k);
                oracle.expect_equal(*index, queries, k);
            }
        }
    }
}

TEST_P(SearchResultTest, RangeSearchEqualsStockIndexesMerged) {
    const Oracle oracle(index, base_rows());
    const float radius = some_radius(index);
    if (!offer.range) {
        EXPECT_NE(message_of([&] { range_search(*index, queries, 1); }), "");
        return;
    }
    for (int mode : range_modes) {
        index->parallel_mode = mode;
        for (size_t nprobe : {1, 4, kLists}) {
            index->nprobe = nprobe;
            oracle.expect_equal_range(*index, queries, radius);
        }
    }
}

TEST_P(SearchTest, EveryWayToSearchAgrees) {
    index->nprobe = 8;
    const idx_t k = 20;
    const Results expected = search(*index, queries, k);
    expect_well_formed(expected, index->metric_type);

    std::vector<float> coarse(kQueries * index->nprobe);
    std::vector<idx_t> lists(kQueries * index->nprobe);
    index->quantizer->search(
            kQueries,
            queries.data(),
            index->nprobe,
            coarse.data(),
            lists.data());
    Results found = expected;
    std::vector<float> rows(kQueries * k * kDim);
    const auto reconstructed = [&] {
        index->search_and_reconstruct(
                kQueries,
                queries.data(),
                k,
                found.distances.data(),
                found.labels.data(),
                rows.data());
    };
    std::vector<idx_t> assigned(kQueries * k);
    index->assign(kQueries, queries.data(), assigned.data(), k);
    EXPECT_EQ(assigned, expected.labels);

    faiss::SearchParametersIVF params;
    params.nprobe = index->nprobe;
    auto preassigned = [&](bool store_pairs) {
        std::fill(found.labels.begin(), found.labels.end(), -7);
        index->search_preassigned(
                kQueries,
                queries.data(),
                k,
                lists.data(),
                coarse.data(),
                found.distances.data(),
                found.labels.data(),
                store_pairs);
    };
    if (!offer.parameters) {
        EXPECT_NE(message_of([&] { preassigned(false); }), "");
        EXPECT_NE(message_of(reconstructed), "");
        EXPECT_NE(message_of([&] { search(*index, queries, k, &params); }), "");
        return;
    }
    preassigned(false);
    EXPECT_EQ(found, expected);
    index->nprobe = 1;
    EXPECT_EQ(search(*index, queries, k, &params), expected);
    index->nprobe = params.nprobe;
    if (!offer.pairs) {
        EXPECT_NE(message_of([&] { preassigned(true); }), "");
        EXPECT_NE(message_of(reconstructed), "");
        return;
    }

    index->nprobe = 1;
    faiss::ivflib::search_with_parameters(
            index.ivf.get(),
            kQueries,
            queries.data(),
            k,
            found.distances.data(),
            found.labels.data(),
            &params);
    EXPECT_EQ(found, expected);
    index->nprobe = params.nprobe;

    preassigned(true);
    for (idx_t& label : found.labels) {
        label = label == -1
                ? -1
                : index->invlists->get_single_id(
                          faiss::lo_listno(label), faiss::lo_offset(label));
    }
    EXPECT_EQ(found.distances, expected.distances);
    expect_well_formed(found, index->metric_type);

    reconstructed();
    EXPECT_EQ(found.distances, expected.distances);
    expect_well_formed(found, index->metric_type);
}

TEST_P(SearchTest, RangeSearchOfGivenListsIsUniqueToo) {
    index->nprobe = 8;
    const float radius = some_radius(index);
    std::vector<float> coarse(kQueries * index->nprobe);
    std::vector<idx_t> lists(kQueries * index->nprobe);
    index->quantizer->search(
            kQueries,
            queries.data(),
            index->nprobe,
            coarse.data(),
            lists.data());
    const auto given = [&](faiss::RangeSearchResult& found, bool store_pairs) {
        as_its_type(*index, [&](auto& typed) {
            typed.range_search_preassigned(
                    kQueries,
                    queries.data(),
                    radius,
                    lists.data(),
                    coarse.data(),
                    &found,
                    store_pairs);
        });
    };
    if (!offer.range_given_lists) {
        faiss::RangeSearchResult found(kQueries);
        EXPECT_NE(message_of([&] { given(found, false); }), "");
        return;
    }
    const auto expected = range_search(*index, queries, radius);
    for (bool store_pairs : {false, true}) {
        faiss::RangeSearchResult found(kQueries);
        given(found, store_pairs);
        for (idx_t i = 0; i < kQueries; i++) {
            std::vector<std::pair<idx_t, float>> results;
            for (size_t j = found.lims[i]; j < found.lims[i + 1]; j++) {
                const idx_t label = found.labels[j];
                results.emplace_back(
                        store_pairs ? index->invlists->get_single_id(
                                              faiss::lo_listno(label),
                                              faiss::lo_offset(label))
                                    : label,
                        found.distances[j]);
            }
            std::sort(results.begin(), results.end());
            ASSERT_EQ(results, expected[i]);
        }
    }
}

TEST_P(SearchTest, SelectorsChooseAmongBothCopies) {
    const Oracle oracle(index, base_rows());
    if (!offer.parameters) {
        return;
    }
    const auto is_odd = [](idx_t id) { return id % 2 == 1; };
    const auto in_range = [](idx_t id) { return 300 <= id && id < 900; };
    Selector odd(is_odd);
    faiss::IDSelectorRange range(300, 900), sorted_range(300, 900, true);
    index->nprobe = 6;
    for (auto& [selector, selected] :
         std::vector<std::pair<faiss::IDSelector*, std::function<bool(idx_t)>>>{
                 {&odd, is_odd},
                 {&range, in_range},
                 {&sorted_range, in_range}}) {
        faiss::SearchParametersIVF params;
        params.nprobe = 6;
        params.sel = selector;
        const Results results = search(*index, queries, 30, &params);
        expect_well_formed(results, index->metric_type);
        // as a search for everything, filtered afterwards
        const Results all = search(*index, queries, kRows);
        for (idx_t i = 0; i < kQueries; i++) {
            std::vector<float> expected;
            for (idx_t j = i * kRows; j < (i + 1) * kRows; j++) {
                if (all.labels[j] != -1 && selected(all.labels[j])) {
                    expected.push_back(all.distances[j]);
                }
            }
            for (idx_t j = 0; j < 30; j++) {
                const idx_t label = results.labels[i * 30 + j];
                ASSERT_EQ(label != -1, j < idx_t(expected.size()));
                if (label != -1) {
                    ASSERT_TRUE(selected(label));
                    ASSERT_EQ(results.distances[i * 30 + j], expected[j]);
                }
            }
        }
    }
}

TEST_P(SearchResultTest, WithoutSecondCopiesIsBitIdenticalToStock) {
    MultiIndex single = copy_of_empty(index);
    single.multi->assigner.policy = AssignPolicy::single;
    MultiIndex never = copy_of_empty(index);
    never.multi->assigner.tau = 2;
    never.multi->assigner.distance_ratio = 1e-6;
    const auto stock = stock_twin(*index);
    for (faiss::IndexIVF* any : {single.ivf.get(), never.ivf.get()}) {
        any->add(kRows, base_rows().data());
    }
    stock->add(kRows, base_rows().data());
    const float radius = some_radius(index);
    for (MultiIndex* ours : {&single, &never}) {
        ASSERT_EQ(ours->multi->nentries(), size_t(kRows));
        for (int mode : modes) {
            for (size_t nprobe : {1, 5, kLists}) {
                for (faiss::IndexIVF* any : {ours->ivf.get(), stock.get()}) {
                    any->parallel_mode = mode;
                    any->nprobe = nprobe;
                }
                const Results found = search(**ours, queries, 10);
                const Results expected = search(*stock, queries, 10);
                EXPECT_EQ(found.distances, expected.distances);
                if (mode == 0 || mode == 3) {
                    // the others merge threads: ties come in any order
                    EXPECT_EQ(found.labels, expected.labels);
                }
                if (mode < 3 && offer.range) {
                    EXPECT_EQ(
                            range_search(**ours, queries, radius),
                            range_search(*stock, queries, radius));
                }
            }
        }
    }
}

TEST_P(SearchResultTest, FindsEveryVectorInItsFirstList) {
    // what a probe of one list sees is the stock index and second copies
    index->nprobe = 1;
    const auto stock = stock_twin(*index);
    stock->add(kRows, base_rows().data());
    const Results ours = search(*index, base_rows(), 1);
    const Results theirs = search(*stock, base_rows(), 1);
    idx_t themselves = 0;
    for (idx_t i = 0; i < kRows; i++) {
        ASSERT_NE(ours.labels[i], -1);
        if (index->metric_type == faiss::METRIC_L2) {
            ASSERT_LE(ours.distances[i], theirs.distances[i]);
        } else {
            ASSERT_GE(ours.distances[i], theirs.distances[i]);
        }
        themselves += ours.labels[i] == i;
    }
    if (GetParam().codec == Codec::flat &&
        index->metric_type == faiss::METRIC_L2) {
        EXPECT_EQ(themselves, kRows);
    }
}

TEST_P(SearchTest, QueriesUnlikeTheRowsLoseNothing) {
    std::vector<float> shifted = queries;
    for (float& value : shifted) {
        value += 1.5f;
    }
    const auto stock = stock_twin(*index);
    stock->add(kRows, base_rows().data());
    for (size_t nprobe : {1, 4}) {
        index->nprobe = stock->nprobe = nprobe;
        const Results ours = search(*index, shifted, 10);
        const Results theirs = search(*stock, shifted, 10);
        for (size_t i = 0; i < ours.distances.size(); i++) {
            if (theirs.labels[i] == -1) {
                continue;
            }
            if (index->metric_type == faiss::METRIC_L2) {
                ASSERT_LE(ours.distances[i], theirs.distances[i]);
            } else {
                ASSERT_GE(ours.distances[i], theirs.distances[i]);
            }
        }
    }
}

TEST_P(SearchTest, MoreResultsThanVectorsEndInStockPadding) {
    index->nprobe = kLists;
    const std::vector<float> few(queries.begin(), queries.begin() + 3 * kDim);
    const auto empty = stock_twin(*index);
    const Results padding = search(*empty, few, 1);
    const idx_t k = 5000;
    const Results results = search(*index, few, k);
    expect_well_formed(results, index->metric_type);
    for (idx_t i = 0; i < 3; i++) {
        EXPECT_NE(results.labels[i * k + kRows - 1], -1);
        for (idx_t j = kRows; j < k; j++) {
            ASSERT_EQ(results.labels[i * k + j], -1);
            if (!offer.blocks) { // FastScan pads with what it likes
                ASSERT_EQ(results.distances[i * k + j], padding.distances[0]);
            }
        }
    }
}

TEST_P(SearchTest, ReturnsAllReachableVectorsBeforeNone) {
    index->nprobe = 1;
    const idx_t k = kRows;
    const Results results = search(*index, queries, k);
    std::vector<idx_t> lists(kQueries);
    index->quantizer->assign(kQueries, queries.data(), lists.data());
    for (idx_t i = 0; i < kQueries; i++) {
        faiss::InvertedLists::ScopedIds ids(index->invlists, lists[i]);
        const size_t size = index->invlists->list_size(lists[i]);
        const std::set<idx_t> expected(ids.get(), ids.get() + size);
        std::set<idx_t> found(
                results.labels.begin() + i * k,
                results.labels.begin() + (i + 1) * k);
        found.erase(-1);
        ASSERT_EQ(found, expected);
    }
}

TEST_P(SearchTest, ProbingMoreListsThanThereAreProbesAll) {
    index->nprobe = kLists;
    const Results expected = search(*index, queries, 10);
    index->nprobe = 1000;
    if (!offer.parameters) {
        EXPECT_NE(
                message_of([&] { search(*index, queries, 10); }).find("1000"),
                std::string::npos);
        return;
    }
    EXPECT_EQ(search(*index, queries, 10), expected);
    faiss::SearchParametersIVF params;
    params.nprobe = 1000;
    index->nprobe = 1;
    EXPECT_EQ(search(*index, queries, 10, &params), expected);
}

TEST_P(SearchTest, MaxCodesLimitsTheScanAndKeepsResultsUnique) {
    faiss::SearchParametersIVF params;
    params.nprobe = kLists;
    const auto found = [&] {
        const Results results = search(*index, queries, kRows, &params);
        expect_well_formed(results, index->metric_type);
        return kQueries * kRows -
                std::count(results.labels.begin(), results.labels.end(), -1);
    };
    if (!offer.max_codes) {
        params.max_codes = 100;
        EXPECT_NE(message_of([&] { found(); }), "");
        return;
    }
    EXPECT_EQ(found(), kQueries * kRows);
    params.max_codes = 100;
    EXPECT_LT(found(), kQueries * kRows / 2);
    EXPECT_GT(found(), kQueries * 20);
}

TEST_P(SearchTest, NoQueriesAndNoVectorsGiveStockShapes) {
    EXPECT_EQ(search(*index, {}, 10).labels.size(), 0u);
    if (offer.range) {
        EXPECT_EQ(range_search(*index, {}, 1.f).size(), 0u);
    }
    for (int mode : modes) {
        index->parallel_mode = mode;
        EXPECT_EQ(search(*index, {}, 10).labels.size(), 0u);
    }
    const MultiIndex empty = copy_of_empty(index);
    const auto stock = stock_twin(*index);
    EXPECT_EQ(search(*empty, queries, 4), search(*stock, queries, 4));
    if (offer.range) {
        EXPECT_EQ(
                range_search(*empty, queries, 1.f),
                range_search(*stock, queries, 1.f));
    }
    EXPECT_EQ(empty.multi->entries_per_vector(), 1);
}

TEST_P(SearchTest, ManyQueriesAndResultsAreFetchedInBlocks) {
    index->nprobe = kLists;
    index->parallel_mode = 3; // all queries in one call
    const idx_t n = 1500;
    const std::vector<float> many = clustered_rows(n, kDim, kLists, 9);
    const Results few = search(*index, many, 5);
    const Results all = search(*index, many, kRows - 1);
    for (idx_t i = 0; i < n; i++) {
        ASSERT_TRUE(std::equal(
                few.distances.begin() + i * few.k,
                few.distances.begin() + (i + 1) * few.k,
                all.distances.begin() + i * all.k));
    }
}

TEST_P(SearchTest, AQueryThatIsNotFiniteDoesNoHarm) {
    std::vector<float> bad = queries;
    bad[3] = NAN;
    bad[kDim + 5] = INFINITY;
    bad[2 * kDim] = -INFINITY;
    for (int mode : modes) {
        index->parallel_mode = mode;
        index->nprobe = 4;
        const Results expected = search(*index, queries, 10);
        const Results results = search(*index, bad, 10);
        for (size_t j = 3 * 10; j < results.labels.size(); j++) {
            ASSERT_EQ(results.distances[j], expected.distances[j]);
        }
    }
    index->parallel_mode = 0;
    if (offer.range) {
        EXPECT_EQ(range_search(*index, bad, 1.f).size(), size_t(kQueries));
    }
}

TEST_P(SearchTest, ConcurrentSearchesAgree) {
    index->nprobe = 8;
    // enough of them for each search to use several threads
    const std::vector<float> many = clustered_rows(300, kDim, kLists, 9);
    const Results expected = search(*index, many, 10);
    Results found[4];
    std::vector<std::thread> threads;
    for (Results& results : found) {
        threads.emplace_back([&] {
            for (int times = 0; times < 3; times++) {
                results = search(*index, many, 10);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const Results& results : found) {
        EXPECT_EQ(results, expected);
    }
}

TEST_P(SearchTest, WrongUseThrowsInsteadOfAborting) {
    std::vector<float> distances(kQueries * 10), coarse(kQueries);
    std::vector<idx_t> labels(kQueries * 10), lists(kQueries, 0);
    const auto search_with = [&](idx_t k,
                                 const faiss::SearchParameters* params) {
        index->search(
                kQueries,
                queries.data(),
                k,
                distances.data(),
                labels.data(),
                params);
    };
    EXPECT_NE(message_of([&] { search_with(0, nullptr); }), "");
    EXPECT_NE(message_of([&] { search_with(-1, nullptr); }), "");
    faiss::SearchParameters wrong_type;
    EXPECT_NE(message_of([&] { search_with(10, &wrong_type); }), "");
    faiss::SearchParametersIVF params;
    params.nprobe = 0;
    EXPECT_NE(message_of([&] { search_with(10, &params); }), "");

    params.nprobe = 1;
    auto preassigned = [&](bool store_pairs) {
        index->search_preassigned(
                kQueries,
                queries.data(),
                10,
                lists.data(),
                coarse.data(),
                distances.data(),
                labels.data(),
                store_pairs,
                &params);
    };
    lists[7] = kLists;
    EXPECT_NE(
            message_of([&] { preassigned(false); }).find("32"),
            std::string::npos);
    lists[7] = 0;
    faiss::IDSelectorRange range(0, 10, true);
    params.sel = &range;
    EXPECT_NE(message_of([&] { preassigned(true); }), "");

    index->parallel_mode = 4;
    EXPECT_NE(message_of([&] { search_with(10, nullptr); }), "");
    index->parallel_mode = index->PARALLEL_MODE_NO_HEAP_INIT;
    EXPECT_NE(message_of([&] { search_with(10, nullptr); }), "");
    index->parallel_mode = 3;
    faiss::RangeSearchResult result(kQueries);
    auto range_with = [&](faiss::RangeSearchResult& target) {
        index->range_search(kQueries, queries.data(), 1.f, &target);
    };
    EXPECT_NE(message_of([&] { range_with(result); }), "");
    index->parallel_mode = 0;
    if (!offer.range) {
        return;
    }
    range_with(result);
    EXPECT_NE(message_of([&] { range_with(result); }), ""); // used before
    faiss::RangeSearchResult other(kQueries - 1);
    EXPECT_NE(message_of([&] { range_with(other); }), "");
}

TEST_P(SearchTest, AnUntrainedIndexThrows) {
    MultiIndex untrained = make_untrained(GetParam());
    std::vector<float> rows(kDim);
    EXPECT_NE(message_of([&] { search(*untrained, queries, 1); }), "");
    EXPECT_NE(message_of([&] { range_search(*untrained, queries, 1); }), "");
    EXPECT_NE(
            message_of([&] { untrained->add(kRows, base_rows().data()); }), "");
    std::vector<float> distances(kQueries);
    std::vector<idx_t> labels(kQueries);
    EXPECT_NE(
            message_of([&] {
                untrained->search_and_reconstruct(
                        1,
                        queries.data(),
                        1,
                        distances.data(),
                        labels.data(),
                        rows.data());
            }),
            "");
    EXPECT_EQ(untrained->ntotal, 0);
}

/// Lists of which one cannot be read.
struct BrokenLists : faiss::ArrayInvertedLists {
    using ArrayInvertedLists::ArrayInvertedLists;
    const uint8_t* get_codes(size_t list) const override {
        if (list == 3) {
            throw std::runtime_error("unreadable");
        }
        return ArrayInvertedLists::get_codes(list);
    }
};

TEST_P(SearchTest, ExceptionsInsideParallelRegionsAreCatchable) {
    if (offer.blocks) {
        return; // FastScan of FAISS lets them end the process
    }
    index->nprobe = kLists;
    Selector throwing([](idx_t id) -> bool {
        if (id == 17) {
            throw std::runtime_error("selector");
        }
        return true;
    });
    faiss::SearchParametersIVF params;
    params.nprobe = kLists;
    params.sel = &throwing;
    for (int mode : modes) {
        index->parallel_mode = mode;
        EXPECT_NE(
                message_of([&] {
                    search(*index, queries, 10, &params);
                }).find("selector"),
                std::string::npos);
    }
    for (int mode : range_modes) {
        index->parallel_mode = mode;
        EXPECT_NE(
                message_of([&] {
                    range_search(*index, queries, 1e9f, &params);
                }).find("selector"),
                std::string::npos);
    }
    index->parallel_mode = 0;
    BrokenLists broken(kLists, index->code_size);
    broken.codes =
            dynamic_cast<faiss::ArrayInvertedLists*>(index->invlists)->codes;
    broken.ids = dynamic_cast<faiss::ArrayInvertedLists*>(index->invlists)->ids;
    faiss::InvertedLists* const readable = index->invlists;
    index->invlists = &broken;
    for (int mode : modes) {
        index->parallel_mode = mode;
        EXPECT_NE(
                message_of([&] {
                    search(*index, queries, 10);
                }).find("unreadable"),
                std::string::npos);
    }
    index->invlists = readable;
}

struct FlatSearchTest : ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
        MultiAssign,
        FlatSearchTest,
        ::testing::Values(
                Case{Codec::flat, faiss::METRIC_L2, AssignPolicy::posterior},
                Case{Codec::flat, faiss::METRIC_L2, AssignPolicy::nearest},
                Case{Codec::flat,
                     faiss::METRIC_INNER_PRODUCT,
                     AssignPolicy::posterior},
                Case{Codec::flat,
                     faiss::METRIC_INNER_PRODUCT,
                     AssignPolicy::nearest}),
        case_name);

TEST_P(FlatSearchTest, ProbingAllListsEqualsExhaustiveSearch) {
    const MultiIndex index = make_filled(GetParam());
    index->nprobe = kLists;
    faiss::IndexFlat flat(kDim, index->metric_type);
    flat.add(kRows, base_rows().data());
    // fewer than 20 queries at once: IndexFlat, too, sums without BLAS
    for (idx_t i = 0; i < kQueries; i += 10) {
        const std::vector<float> queries(
                query_rows().begin() + i * kDim,
                query_rows().begin() + (i + 10) * kDim);
        EXPECT_EQ(
                search(*index, queries, 50).distances,
                search(flat, queries, 50).distances);
    }
}

TEST_P(FlatSearchTest, ReconstructsWhatItFinds) {
    const MultiIndex index = make_filled(GetParam());
    index->nprobe = 4;
    const idx_t k = 5;
    std::vector<float> distances(kQueries * k), rows(kQueries * k * kDim);
    std::vector<idx_t> labels(kQueries * k);
    index->search_and_reconstruct(
            kQueries,
            query_rows().data(),
            k,
            distances.data(),
            labels.data(),
            rows.data());
    for (idx_t i = 0; i < kQueries * k; i++) {
        ASSERT_GE(labels[i], 0);
        ASSERT_TRUE(std::equal(
                rows.begin() + i * kDim,
                rows.begin() + (i + 1) * kDim,
                base_rows().begin() + labels[i] * kDim));
    }
}

/// Rows whose norms span orders of magnitude, and zero rows.
std::vector<float> uneven_rows(idx_t n, bool with_zeros) {
    std::vector<float> rows = clustered_rows(n, kDim, kLists, 21);
    std::mt19937 random(3);
    std::lognormal_distribution<float> norm(0, 1.5);
    for (idx_t i = 0; i < n; i++) {
        const float factor = with_zeros ? float(i % 2) : norm(random);
        for (int j = 0; j < kDim; j++) {
            rows[i * kDim + j] *= factor;
        }
    }
    return rows;
}

TEST_P(FlatSearchTest, UnevenNormsAndZeroRowsAreFoundInAFullProbe) {
    for (bool with_zeros : {false, true}) {
        const std::vector<float> rows = uneven_rows(kRows, with_zeros);
        MultiIndex index = make_untrained(GetParam());
        index->cp.spherical = true;
        index->train(kRows, rows.data());
        index->add(kRows, rows.data());
        ASSERT_EQ(index->ntotal, kRows);
        index->nprobe = kLists;
        faiss::IndexFlat flat(kDim, index->metric_type);
        flat.add(kRows, rows.data());
        const std::vector<float> few(
                query_rows().begin(), query_rows().begin() + 10 * kDim);
        EXPECT_EQ(
                search(*index, few, 100).distances,
                search(flat, few, 100).distances);
        const Results all = search(*index, few, kRows);
        for (idx_t label : all.labels) {
            ASSERT_NE(label, -1);
        }
    }
}

} // namespace
} // namespace faiss_flashgmm
