#include <faiss_flashgmm/IndexIVFMultiAssign.h>

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include <faiss/AutoTune.h>
#include <faiss/IVFlib.h>
#include <faiss/IndexFlat.h>
#include <faiss/IndexIDMap.h>
#include <faiss/IndexPreTransform.h>
#include <faiss/IndexRefine.h>
#include <faiss/VectorTransform.h>
#include <faiss/clone_index.h>
#include <faiss/impl/io.h>
#include <faiss/index_factory.h>
#include <faiss/index_io.h>

#include <faiss_flashgmm/list_codes.h>

#include "face/multi_assign_cases.h"

// Together with the rest of FAISS: taking over its indexes, its wrappers,
// its tools.
namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;

struct StockTest : ::testing::TestWithParam<Case> {
    MultiIndex index = make_filled(GetParam());
    const std::vector<float>& rows = base_rows();
};

INSTANTIATE_TEST_SUITE_P(
        MultiAssign,
        StockTest,
        ::testing::ValuesIn(some_cases()),
        case_name);

size_t repeats_in(const Results& results) {
    size_t repeats = 0;
    for (size_t i = 0; i < results.labels.size(); i += results.k) {
        std::vector<idx_t> ids(
                results.labels.begin() + i,
                results.labels.begin() + i + results.k);
        ids.erase(std::remove(ids.begin(), ids.end(), -1), ids.end());
        std::sort(ids.begin(), ids.end());
        repeats += ids.end() - std::unique(ids.begin(), ids.end());
    }
    return repeats;
}

TEST_P(StockTest, TakesOverAFilledIndex) {
    std::unique_ptr<faiss::IndexIVF> stock = stock_twin(*index);
    stock->add(kRows, rows.data());
    stock->set_direct_map_type(faiss::DirectMap::Array);
    stock->nprobe = 4;
    stock->quantizer = new faiss::IndexFlat(
            dynamic_cast<faiss::IndexFlat&>(*index->quantizer));
    stock->own_fields = true;
    const Results expected = search(*stock, query_rows(), 10);
    std::unique_ptr<faiss::Index> any = std::move(stock);
    IVFMultiAssign* multi = make_multi_assign(any);
    auto* ivf = dynamic_cast<faiss::IndexIVF*>(any.get());
    ASSERT_EQ(dynamic_cast<IVFMultiAssign*>(ivf), multi);
    EXPECT_EQ(multi->nentries(), size_t(kRows));
    EXPECT_EQ(search(*ivf, query_rows(), 10), expected);

    // second copies join single ones
    multi->assigner.policy = AssignPolicy::nearest;
    ivf->add(100, rows.data());
    EXPECT_EQ(ivf->ntotal, kRows + 100);
    EXPECT_EQ(multi->nentries(), size_t(kRows + 200));
    EXPECT_FALSE(lists_of(*ivf, kRows + 99).empty());
    expect_well_formed(search(*ivf, query_rows(), 10), ivf->metric_type);
    std::vector<float> row(kDim);
    ivf->reconstruct(kRows + 99, row.data());
    // taken over once more, it is the same
    faiss::Index* const same = any.get();
    EXPECT_EQ(make_multi_assign(any), multi);
    EXPECT_EQ(any.get(), same);
}

TEST_P(StockTest, AnIndexFilledTwiceIsCountedRight) {
    std::unique_ptr<faiss::IndexIVF> stock = stock_twin(*index);
    std::vector<idx_t> ids(kRows);
    std::iota(ids.begin(), ids.end(), 0);
    stock->add_with_ids(kRows, rows.data(), ids.data());
    stock->add_with_ids(kRows, rows.data(), ids.data());
    EXPECT_EQ(stock->ntotal, 2 * kRows);
    std::unique_ptr<faiss::Index> any = std::move(stock);
    IVFMultiAssign* multi = make_multi_assign(any);
    EXPECT_EQ(any->ntotal, kRows);
    EXPECT_EQ(multi->nentries(), size_t(2 * kRows));
    EXPECT_EQ(multi->entries_per_vector(), 2);
    expect_well_formed(search(*any, query_rows(), 10), any->metric_type);
    multi->assigner.policy = AssignPolicy::single;
    any->add(1, rows.data());
    EXPECT_EQ(any->ntotal, kRows + 1);
}

TEST_P(StockTest, AnIdStoredTooOftenIsNotTakenOver) {
    std::unique_ptr<faiss::IndexIVF> stock = stock_twin(*index);
    const std::vector<idx_t> ids(9, 4);
    stock->add_with_ids(9, rows.data(), ids.data());
    std::unique_ptr<faiss::Index> any = std::move(stock);
    faiss::Index* const before = any.get();
    EXPECT_NE(
            message_of([&] { make_multi_assign(any); }).find("id 4"),
            std::string::npos);
    EXPECT_EQ(any.get(), before);
    search(*any, query_rows(), 1); // and still owns what it did
}

TEST_P(StockTest, AStockFileShowsTheCopiesAndIsTakenOverAgain) {
    index->nprobe = 4;
    const Results expected = search(*index, query_rows(), 20);
    faiss::VectorIOWriter writer;
    faiss::write_index(index.ivf.get(), &writer);
    faiss::VectorIOReader reader;
    reader.data = writer.data;
    std::unique_ptr<faiss::Index> read(faiss::read_index(&reader));
    EXPECT_EQ(dynamic_cast<IVFMultiAssign*>(read.get()), nullptr);
    EXPECT_GT(repeats_in(search(*read, query_rows(), 20)), 0u);
    IVFMultiAssign* multi = make_multi_assign(read);
    EXPECT_EQ(read->ntotal, kRows);
    EXPECT_EQ(multi->nentries(), index.multi->nentries());
    EXPECT_EQ(search(*read, query_rows(), 20), expected);
    // the mixture is not in the file
    EXPECT_EQ(multi->mixture().k, 0);
    multi->set_mixture(index.multi->mixture());
    multi->assigner = index.multi->assigner;
    read->add(1, rows.data());
    EXPECT_EQ(read->ntotal, kRows + 1);
}

TEST_P(StockTest, AStockCloneShowsTheCopiesAndIsTakenOverAgain) {
    if (!GetParam().offer().parameters) {
        return; // nor does FAISS before 1.8 clone FastScan indexes
    }
    index->nprobe = 4;
    std::unique_ptr<faiss::Index> clone(faiss::clone_index(index.ivf.get()));
    EXPECT_EQ(dynamic_cast<IVFMultiAssign*>(clone.get()), nullptr);
    EXPECT_GT(repeats_in(search(*clone, query_rows(), 20)), 0u);
    make_multi_assign(clone);
    EXPECT_EQ(
            search(*clone, query_rows(), 20), search(*index, query_rows(), 20));
}

TEST_P(StockTest, RecountFollowsListsThatOthersChanged) {
    const idx_t gone = 3;
    ListCodes codes(*index);
    std::vector<uint8_t> code(index->code_size);
    for (size_t list : lists_of(*index, gone)) {
        // the copies of one vector alone, taken out by hand
        faiss::InvertedLists* lists = index->invlists;
        const size_t last = lists->list_size(list) - 1;
        for (size_t j = 0; j <= last; j++) {
            if (lists->get_single_id(list, j) == gone) {
                codes.read(list, last, code.data());
                const idx_t id = lists->get_single_id(list, last);
                codes.write(list, j, id, code.data());
                codes.shrink(list, last);
                break;
            }
        }
    }
    index.multi->recount();
    EXPECT_EQ(index->ntotal, kRows - 1);
    index->nprobe = kLists;
    const Results results = search(*index, query_rows(), kRows - 1);
    expect_well_formed(results, index->metric_type);
    EXPECT_EQ(std::count(results.labels.begin(), results.labels.end(), -1), 0);
}

TEST(MultiAssignStock, FactoryStringsAreTakenOverThroughWrappers) {
    for (const char* key :
         {"IVF32,Flat",
          "IVF32,PQ4x6np",
          "PCA8,IVF32,Flat",
          "OPQ4_16,IVF32,PQ4x6np",
          "IDMap,IVF32,Flat",
          "IDMap2,IVF32,PQ4x6np",
          "L2norm,IVF32,Flat"}) {
        SCOPED_TRACE(key);
        std::unique_ptr<faiss::Index> any(faiss::index_factory(kDim, key));
        FlashGMMOptions gmm;
        gmm.variance = VarianceModel::per_component;
        MultiAssign assigner;
        assigner.policy = AssignPolicy::nearest;
        IVFMultiAssign* multi = make_multi_assign(any, assigner, gmm);
        EXPECT_EQ(multi->assigner.policy, AssignPolicy::nearest);
        EXPECT_EQ(multi->gmm.variance, VarianceModel::per_component);
        if (auto* pretransform =
                    dynamic_cast<faiss::IndexPreTransform*>(any.get())) {
            auto* opq = dynamic_cast<faiss::OPQMatrix*>(
                    pretransform->chain.front());
            if (opq) {
                opq->niter = opq->niter_pq_0 = 2;
            }
        }
        any->train(kRows, base_rows().data());
        if (dynamic_cast<faiss::IndexIDMap*>(any.get())) {
            std::vector<idx_t> ids(kRows);
            std::iota(ids.begin(), ids.end(), idx_t(1) << 40);
            any->add_with_ids(kRows, base_rows().data(), ids.data());
            faiss::ParameterSpace().set_index_parameter(
                    dynamic_cast<faiss::IndexIDMap&>(*any).index, "nprobe", 8);
        } else {
            any->add(kRows, base_rows().data());
            faiss::ParameterSpace().set_index_parameter(any.get(), "nprobe", 8);
            EXPECT_EQ(faiss::ivflib::extract_index_ivf(any.get())->nprobe, 8u);
        }
        EXPECT_EQ(any->ntotal, kRows);
        EXPECT_EQ(multi->nentries(), size_t(2 * kRows));
        const Results results = search(*any, query_rows(), 20);
        expect_well_formed(results, faiss::METRIC_L2);
        EXPECT_EQ(
                std::count(results.labels.begin(), results.labels.end(), -1),
                0);
    }
}

TEST(MultiAssignStock, OtherIndexesStayAsTheyAre) {
    for (const char* key :
         {"IVF32,RQ2x4", "Flat", "IVF32,PQ4+4", "PCA8,Flat"}) {
        SCOPED_TRACE(key);
        std::unique_ptr<faiss::Index> any(faiss::index_factory(kDim, key));
        faiss::Index* const before = any.get();
        EXPECT_NE(message_of([&] { make_multi_assign(any); }), "");
        EXPECT_EQ(any.get(), before);
    }
    std::unique_ptr<faiss::Index> none;
    EXPECT_NE(message_of([&] { make_multi_assign(none); }), "");

    // a wrapper that does not own its index
    faiss::IndexFlatL2 quantizer(kDim);
    faiss::IndexIVFFlat ivf(&quantizer, kDim, kLists);
    std::unique_ptr<faiss::Index> wrapper =
            std::make_unique<faiss::IndexPreTransform>(&ivf);
    EXPECT_NE(message_of([&] { make_multi_assign(wrapper); }), "");
    MultiAssign bad;
    bad.distance_ratio = -1;
    std::unique_ptr<faiss::Index> good(
            faiss::index_factory(kDim, "IVF32,Flat"));
    EXPECT_NE(message_of([&] { make_multi_assign(good, bad); }), "");
    EXPECT_EQ(dynamic_cast<IVFMultiAssign*>(good.get()), nullptr);
}

TEST(MultiAssignStock, TheConstructorTakesTheExactTypeOnly) {
    faiss::IndexFlatL2 quantizer(kDim);
    faiss::IndexIVFFlatDedup derived(&quantizer, kDim, kLists);
    faiss::IndexIVFFlat& base = derived;
    EXPECT_NE(
            message_of([&] { IndexIVFFlatMultiAssign index(std::move(base)); }),
            "");
    faiss::IndexIVFFlat exact(&quantizer, kDim, kLists);
    IndexIVFFlatMultiAssign index(std::move(exact));
    EXPECT_FALSE(exact.own_invlists);
    EXPECT_TRUE(index.own_invlists);
    EXPECT_FALSE(index.own_fields); // as before, the quantizer is ours
}

TEST(MultiAssignStock, RefinementSeesDifferentVectors) {
    MultiIndex index =
            make_filled({Codec::pq, faiss::METRIC_L2, AssignPolicy::nearest});
    index->reset();
    faiss::IndexRefineFlat refined(index.ivf.get());
    refined.k_factor = 4;
    refined.add(kRows, base_rows().data());
    index->nprobe = kLists;
    const Results results = search(refined, query_rows(), 10);
    expect_well_formed(results, faiss::METRIC_L2);
    EXPECT_EQ(std::count(results.labels.begin(), results.labels.end(), -1), 0);
}

TEST(MultiAssignStock, AnIndexWithoutPartsThrows) {
    IndexIVFFlatMultiAssign empty;
    const float row[1] = {0};
    float distance;
    idx_t label;
    EXPECT_NE(message_of([&] { empty.train(1, row); }), "");
    EXPECT_NE(message_of([&] { empty.add(1, row); }), "");
    EXPECT_NE(
            message_of([&] { empty.search(1, row, 1, &distance, &label); }),
            "");
    EXPECT_NE(message_of([&] { empty.set_mixture(Mixture(1, 1)); }), "");
}

} // namespace
} // namespace faiss_flashgmm
