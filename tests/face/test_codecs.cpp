#include <faiss_flashgmm/IndexIVFMultiAssign.h>

#include <algorithm>
#include <numeric>
#include <type_traits>

#include <gtest/gtest.h>

#include <faiss/IVFlib.h>
#include <faiss/IndexFlat.h>
#include <faiss/IndexPQ.h>
#include <faiss/impl/IDSelector.h>

#include <faiss_flashgmm/compat.h>
#if FAISS_FLASHGMM_HAS_SEARCH1
#include <faiss/impl/ResultHandler.h>
#include <faiss/utils/Heap.h>
#endif

#include <faiss_flashgmm/list_codes.h>

#include "face/multi_assign_cases.h"

// What single codecs have beside the cases of all: types of codes, tables,
// filters, blocks; and ways to search that few of them have.
namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;

template <class Base>
MultiIndex owned(std::unique_ptr<IndexIVFMultiAssign<Base>> ivf) {
    MultiIndex index;
    ivf->own_fields = true;
    ivf->cp.niter = 5;
    ivf->cp.min_points_per_centroid = 1;
    ivf->assigner.policy = AssignPolicy::nearest;
    if constexpr (requires { ivf->pq; }) {
        ivf->pq.cp.min_points_per_centroid = 1;
    }
    index.multi = ivf.get();
    index.ivf = std::move(ivf);
    return index;
}

void train_and_add(MultiIndex& index) {
    index->train(kRows, base_rows().data());
    index->add(kRows, base_rows().data());
}

void expect_finds_what_it_should(const MultiIndex& index) {
    const Oracle oracle(index, base_rows());
    for (size_t nprobe : {1, 5}) {
        index->nprobe = nprobe;
        oracle.expect_equal(*index, query_rows(), 10);
    }
}

struct ScalarQuantizerTest
        : ::testing::TestWithParam<faiss::ScalarQuantizer::QuantizerType> {};

INSTANTIATE_TEST_SUITE_P(
        Codecs,
        ScalarQuantizerTest,
        ::testing::Values(
                faiss::ScalarQuantizer::QT_8bit,
                faiss::ScalarQuantizer::QT_4bit,
                faiss::ScalarQuantizer::QT_8bit_uniform,
                faiss::ScalarQuantizer::QT_4bit_uniform,
                faiss::ScalarQuantizer::QT_fp16,
                faiss::ScalarQuantizer::QT_8bit_direct,
#if FAISS_FLASHGMM_AT_LEAST(1, 9, 0)
                faiss::ScalarQuantizer::QT_bf16,
                faiss::ScalarQuantizer::QT_8bit_direct_signed,
#endif
                faiss::ScalarQuantizer::QT_6bit));

TEST_P(ScalarQuantizerTest, EachTypeKeepsTheContract) {
    for (bool residuals : {true, false}) {
        for (faiss::MetricType metric :
             {faiss::METRIC_L2, faiss::METRIC_INNER_PRODUCT}) {
            MultiIndex index =
                    owned(std::make_unique<IndexIVFScalarQuantizerMultiAssign>(
                            new faiss::IndexFlat(kDim, metric),
                            kDim,
                            kLists,
                            GetParam(),
                            metric,
                            residuals));
            train_and_add(index);
            expect_finds_what_it_should(index);
            EXPECT_EQ(index->remove_ids(faiss::IDSelectorRange(0, 100)), 100u);
            EXPECT_EQ(index.multi->nentries(), size_t(2 * (kRows - 100)));
        }
    }
}

std::unique_ptr<IndexIVFPQMultiAssign> make_pq(faiss::Index* quantizer) {
    return std::make_unique<IndexIVFPQMultiAssign>(
            quantizer, kDim, quantizer->ntotal > 0 ? 64 : kLists, 4, 6);
}

TEST(PqCodec, WithAndWithoutTables) {
    for (int table : {-1, 0, 1}) {
        MultiIndex index = owned(make_pq(new faiss::IndexFlatL2(kDim)));
        auto& pq = dynamic_cast<IndexIVFPQMultiAssign&>(*index);
        pq.use_precomputed_table = table;
        train_and_add(index);
        EXPECT_EQ(pq.use_precomputed_table, table == 0 ? 1 : table);
        expect_finds_what_it_should(index);
    }
}

TEST(PqCodec, OverAProductOfCentroids) {
    auto ivf = std::make_unique<IndexIVFPQMultiAssign>(
            new faiss::MultiIndexQuantizer(kDim, 2, 3), kDim, 64, 4, 6);
    ivf->quantizer_trains_alone = 1;
    MultiIndex index = owned(std::move(ivf));
    train_and_add(index);
    EXPECT_EQ(
            dynamic_cast<IndexIVFPQMultiAssign&>(*index).use_precomputed_table,
            2);
    expect_finds_what_it_should(index);
}

TEST(PqCodec, PolysemousFilterSeesEachEntry) {
    MultiIndex index = owned(make_pq(new faiss::IndexFlatL2(kDim)));
    auto& pq = dynamic_cast<IndexIVFPQMultiAssign&>(*index);
    pq.do_polysemous_training = true;
    faiss::PolysemousTraining quick;
    quick.n_iter = 100;
    quick.n_redo = 1;
    pq.polysemous_training = &quick;
    train_and_add(index);
    const Results unfiltered = search(*index, query_rows(), 10);
    pq.polysemous_ht = 8;
    expect_finds_what_it_should(index);
    EXPECT_NE(search(*index, query_rows(), 10), unfiltered);
}

struct BlockTest : ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Codecs, BlockTest, ::testing::Values(32, 64, 96));

TEST_P(BlockTest, BlocksOfAnySizeKeepTheContract) {
    MultiIndex index = owned(std::make_unique<IndexIVFPQFastScanMultiAssign>(
            new faiss::IndexFlatL2(kDim),
            kDim,
            8, // long lists
            8,
            4,
            faiss::METRIC_L2,
            GetParam()));
    train_and_add(index);
    expect_finds_what_it_should(index);

    set_direct_map_type(*index, faiss::DirectMap::Hashtable);
    index->remove_ids(Selector([](idx_t id) { return id % 3 == 0; }));
    std::vector<float> left, row(kDim), decoded(kDim);
    std::vector<idx_t> ids;
    auto& pq = dynamic_cast<IndexIVFPQFastScanMultiAssign&>(*index).pq;
    std::vector<uint8_t> code(pq.code_size);
    for (idx_t id = 0; id < kRows; id++) {
        if (id % 3 == 0) {
            continue;
        }
        const float* x = base_rows().data() + id * kDim;
        left.insert(left.end(), x, x + kDim);
        ids.push_back(id);
        index->reconstruct(id, row.data());
        pq.compute_code(x, code.data());
        pq.decode(code.data(), decoded.data());
        ASSERT_EQ(row, decoded) << "id " << id;
    }
    index->nprobe = 3;
    Oracle(index, left, ids).expect_equal(*index, query_rows(), 10);
}

TEST(FastScanCodec, IsMadeOfAPqIndexWithItsCopies) {
    MultiIndex pq = owned(std::make_unique<IndexIVFPQMultiAssign>(
            new faiss::IndexFlatL2(kDim), kDim, kLists, 8, 4));
    dynamic_cast<IndexIVFPQMultiAssign&>(*pq).by_residual = false;
    train_and_add(pq);
    IndexIVFPQFastScanMultiAssign fast(
            dynamic_cast<const faiss::IndexIVFPQ&>(*pq));
    EXPECT_EQ(fast.ntotal, kRows);
    EXPECT_EQ(fast.nentries(), size_t(2 * kRows));
    fast.nprobe = kLists;
    const Results results = search(fast, query_rows(), kRows);
    expect_well_formed(results, faiss::METRIC_L2);
    EXPECT_EQ(std::count(results.labels.begin(), results.labels.end(), -1), 0);
}

struct CodecTest : ::testing::TestWithParam<Case> {
    MultiIndex index = make_filled(GetParam());
    const Offer offer = GetParam().offer();
};

INSTANTIATE_TEST_SUITE_P(
        Codecs,
        CodecTest,
        ::testing::ValuesIn(some_cases()),
        case_name);

TEST_P(CodecTest, CodesCanBeReadAndWritten) {
    ListCodes codes(*index);
    std::vector<uint8_t> first(codes.code_size()), last(first), found(first);
    for (size_t list = 0; list < size_t(kLists); list++) {
        const size_t size = index->invlists->list_size(list);
        if (size < 3) {
            continue;
        }
        codes.read(list, 0, first.data());
        codes.read(list, size - 1, last.data());
        codes.write(list, 0, 12345, last.data());
        codes.read(list, 0, found.data());
        EXPECT_EQ(found, last);
        EXPECT_EQ(index->invlists->get_single_id(list, 0), 12345);
        EXPECT_EQ(codes.append(list, 777, first.data()), size);
        codes.read(list, size, found.data());
        EXPECT_EQ(found, first);
        codes.read(list, size - 1, found.data());
        EXPECT_EQ(found, last);
        codes.shrink(list, 2);
        EXPECT_EQ(codes.append(list, 778, last.data()), 2u);
        codes.read(list, 2, found.data());
        EXPECT_EQ(found, last);
    }
}

TEST_P(CodecTest, StatisticsCountEntries) {
    if (offer.blocks) {
        return; // FastScan takes none
    }
    std::vector<idx_t> lists(kQueries * kLists);
    std::vector<float> coarse(lists.size());
    index->nprobe = kLists;
    index->quantizer->search(
            kQueries, query_rows().data(), kLists, coarse.data(), lists.data());
    const idx_t k = 7;
    std::vector<float> distances(kQueries * k);
    std::vector<idx_t> labels(kQueries * k);
    faiss::IndexIVFStats stats;
    index->search_preassigned(
            kQueries,
            query_rows().data(),
            k,
            lists.data(),
            coarse.data(),
            distances.data(),
            labels.data(),
            false,
            nullptr,
            &stats);
    EXPECT_EQ(stats.nq, size_t(kQueries));
    EXPECT_EQ(stats.ndis, kQueries * index.multi->nentries());
    EXPECT_LE(stats.nlist, size_t(kQueries * kLists));
    EXPECT_GT(stats.nlist, size_t(kQueries * kLists / 2));
}

#if FAISS_FLASHGMM_AT_LEAST(1, 8, 0)
TEST_P(CodecTest, ReturnedCodesAreThoseOfUniqueResults) {
    if (!offer.pairs) {
        return;
    }
    index->nprobe = 4;
    const idx_t k = 5;
    const Results expected = search(*index, query_rows(), k);
    Results found = expected;
    std::vector<uint8_t> codes(kQueries * k * index->code_size);
    index->search_and_return_codes(
            kQueries,
            query_rows().data(),
            k,
            found.distances.data(),
            found.labels.data(),
            codes.data());
    EXPECT_EQ(found.distances, expected.distances);
    expect_well_formed(found, index->metric_type);
}
#endif

#if FAISS_FLASHGMM_HAS_SEARCH1
TEST_P(CodecTest, IteratedListsGiveTheSameResults) {
    if (offer.blocks) {
        return;
    }
    index->nprobe = 6;
    const Results expected = search(*index, query_rows(), 10);
    const auto ranges = range_search(*index, query_rows(), 9.f);
    index->invlists->use_iterator = true;
    EXPECT_EQ(search(*index, query_rows(), 10).distances, expected.distances);
    EXPECT_EQ(range_search(*index, query_rows(), 9.f), ranges);
}

template <class C>
Results search_one_by_one(const faiss::IndexIVF& index, idx_t k) {
    Results results{
            k,
            std::vector<float>(kQueries * k),
            std::vector<idx_t>(kQueries * k)};
    for (idx_t i = 0; i < kQueries; i++) {
        float* distances = results.distances.data() + i * k;
        idx_t* labels = results.labels.data() + i * k;
        faiss::heap_heapify<C>(k, distances, labels);
        faiss::HeapResultHandler<C, false> handler(k, distances, labels);
        handler.threshold = distances[0];
        index.search1(query_rows().data() + i * kDim, handler, nullptr);
        faiss::heap_reorder<C>(k, distances, labels);
    }
    return results;
}

TEST_P(CodecTest, AHandlerOfTheCallerGetsEachIdOnce) {
    index->nprobe = 6;
    const bool l2 = index->metric_type == faiss::METRIC_L2;
    const auto run = [&](idx_t k) {
        return l2 ? search_one_by_one<faiss::CMax<float, idx_t>>(*index, k)
                  : search_one_by_one<faiss::CMin<float, idx_t>>(*index, k);
    };
    if (!offer.search1) {
        EXPECT_NE(message_of([&] { run(10); }), "");
        return;
    }
    for (idx_t k : {1, 10, 100}) {
        const Results results = run(k);
        expect_well_formed(results, index->metric_type);
        const Results expected = search(*index, query_rows(), k);
        for (size_t i = 0; i < results.distances.size(); i++) {
            // coarse distances depend on how many queries come at once
            ASSERT_NEAR(
                    results.distances[i],
                    expected.distances[i],
                    1e-5 * std::abs(expected.distances[i]) + 1e-6);
        }
    }
}
#endif

} // namespace
} // namespace faiss_flashgmm
