#include <faiss_flashgmm/make_multi_assign.h>

#include <algorithm>
#include <cmath>
#include <typeinfo>

#include <gtest/gtest.h>

#include <faiss/IVFlib.h>
#include <faiss/IndexFlat.h>
#include <faiss/IndexIDMap.h>
#include <faiss/IndexPreTransform.h>
#include <faiss/IndexRefine.h>
#include <faiss/IndexReplicas.h>
#include <faiss/IndexShards.h>
#include <faiss/VectorTransform.h>
#include <faiss/impl/IDSelector.h>
#include <faiss/index_factory.h>
#if FAISS_FLASHGMM_AT_LEAST(1, 7, 4)
#include <faiss/IndexIVFIndependentQuantizer.h>
#endif

#include "face/multi_assign_cases.h"

// Multi-assign indexes of every codec below every wrapper of FAISS.
namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;

MultiAssign nearest_policy() {
    MultiAssign assigner;
    assigner.policy = AssignPolicy::nearest;
    return assigner;
}

std::unique_ptr<faiss::Index> made(const std::string& key) {
    std::unique_ptr<faiss::Index> index(
            faiss::index_factory(kDim, key.c_str()));
    make_multi_assign(index, nearest_policy());
    if (auto* chain = dynamic_cast<faiss::IndexPreTransform*>(index.get())) {
        if (auto* opq = dynamic_cast<faiss::OPQMatrix*>(chain->chain[0])) {
            opq->niter = opq->niter_pq_0 = opq->niter_pq = 1;
        }
    }
    return index;
}

faiss::IndexIVF& ivf_of(IVFMultiAssign* part) {
    return dynamic_cast<faiss::IndexIVF&>(*part);
}

void set_nprobe(faiss::Index& index, size_t nprobe) {
    for (IVFMultiAssign* part : multi_assign_parts(index)) {
        ivf_of(part).nprobe = nprobe;
    }
}

/// All rows are there, each once, and stored twice.
void expect_complete(faiss::Index& index, idx_t n) {
    EXPECT_EQ(index.ntotal, n);
    set_nprobe(index, kLists);
    const Results results = search(index, query_rows(), n);
    expect_well_formed(results, faiss::METRIC_L2);
    EXPECT_EQ(std::count(results.labels.begin(), results.labels.end(), -1), 0);
    size_t entries = 0;
    for (IVFMultiAssign* part : multi_assign_parts(index)) {
        entries += part->nentries();
    }
    EXPECT_EQ(entries, size_t(2 * n));
}

struct WrapperTest : ::testing::TestWithParam<const char*> {
    const std::string codec = GetParam();
    const std::string key = "IVF32," + codec;
    const bool exact = codec == "Flat";
    const std::vector<float>& rows = base_rows();
    std::vector<float> row = std::vector<float>(kDim);
};

INSTANTIATE_TEST_SUITE_P(
        Codecs,
        WrapperTest,
        ::testing::Values(
                "Flat",
                "SQ8",
                "PQ4x6np",
#if FAISS_FLASHGMM_HAS_RABITQ
                "RaBitQ",
#endif
                "PQ4x4fs"),
        [](const auto& info) { return std::string(info.param); });

TEST_P(WrapperTest, IndexPreTransform) {
    for (const char* transform : {"PCA8", "OPQ4_16", "RR16"}) {
        SCOPED_TRACE(transform);
        auto index = made(std::string(transform) + "," + key);
        index->train(kRows, rows.data());
        index->add(kRows, rows.data());
        expect_complete(*index, kRows);
        set_direct_map_type(
                ivf_of(multi_assign_parts(*index)[0]),
                faiss::DirectMap::Hashtable);
        index->reconstruct(17, row.data());
        float error = 0;
        for (int i = 0; i < kDim; i++) {
            error += std::abs(row[i] - rows[17 * kDim + i]);
        }
        EXPECT_LT(error, exact && transform[0] != 'P' ? 1e-3f : 20.f);
        EXPECT_EQ(index->remove_ids(faiss::IDSelectorRange(10, 60)), 50u);
        expect_complete(*index, kRows - 50);
    }
}

TEST_P(WrapperTest, IndexIDMap) {
    std::vector<idx_t> ids(kRows);
    for (idx_t i = 0; i < kRows; i++) {
        ids[i] = (idx_t(1) << 40) + 3 * i;
    }
    for (const char* map : {"IDMap", "IDMap2"}) {
        SCOPED_TRACE(map);
        auto index = made(std::string(map) + "," + key);
        index->train(kRows, rows.data());
        index->add_with_ids(kRows, rows.data(), ids.data());
        expect_complete(*index, kRows);
        const Results results = search(*index, query_rows(), 5);
        for (idx_t label : results.labels) {
            ASSERT_TRUE(std::binary_search(ids.begin(), ids.end(), label));
        }
        if (map[5] == '2') {
            set_direct_map_type(
                    ivf_of(multi_assign_parts(*index)[0]),
                    faiss::DirectMap::Array);
            index->reconstruct(ids[21], row.data());
            if (exact) {
                EXPECT_TRUE(
                        std::equal(row.begin(), row.end(), &rows[21 * kDim]));
            }
            set_direct_map_type(
                    ivf_of(multi_assign_parts(*index)[0]),
                    faiss::DirectMap::NoMap);
        }
#if FAISS_FLASHGMM_KNOWS_SELECTOR_OF_ID_MAP
        const faiss::IDSelectorRange some(ids[10], ids[60]);
        EXPECT_NE(message_of([&] { index->remove_ids(some); }), "");
        expect_complete(*index, kRows);
#endif
    }
}

TEST_P(WrapperTest, IndexRefine) {
    auto index = made(key + ",RFlat");
    index->train(kRows, rows.data());
    index->add(kRows, rows.data());
    expect_complete(*index, kRows);
    auto& refine = dynamic_cast<faiss::IndexRefine&>(*index);
    refine.k_factor = 20;
    faiss::IndexFlatL2 flat(kDim);
    flat.add(kRows, rows.data());
    const Results found = search(*index, query_rows(), 1);
    const Results wanted = search(flat, query_rows(), 1);
    idx_t same = 0;
    for (idx_t i = 0; i < kQueries; i++) {
        same += found.labels[i] == wanted.labels[i];
    }
    EXPECT_GE(same, exact ? kQueries : kQueries / 2);
    index->reconstruct(5, row.data());
    EXPECT_TRUE(std::equal(row.begin(), row.end(), &rows[5 * kDim]));
    const faiss::IDSelectorRange some(10, 60); // as all IndexRefine
    EXPECT_NE(message_of([&] { index->remove_ids(some); }), "");
    expect_complete(*index, kRows);
}

template <class Collection>
std::unique_ptr<faiss::Index> collected(const std::string& key, bool threaded) {
    auto all = std::make_unique<Collection>(kDim, threaded);
    for (int i = 0; i < 2; i++) {
        all->addIndex(faiss::index_factory(kDim, key.c_str()));
    }
    all->FAISS_FLASHGMM_OWN_MEMBERS = true;
    return all;
}

TEST_P(WrapperTest, IndexShards) {
    for (bool threaded : {false, true}) {
        auto index = collected<faiss::IndexShards>(key, threaded);
        dynamic_cast<faiss::IndexShards&>(*index).successive_ids = false;
        IVFMultiAssign* first = make_multi_assign(index, nearest_policy());
        ASSERT_EQ(multi_assign_parts(*index).size(), 2u);
        EXPECT_EQ(multi_assign_parts(*index)[0], first);
        index->train(kRows, rows.data());
        index->add(kRows, rows.data());
        expect_complete(*index, kRows);
        for (IVFMultiAssign* part : multi_assign_parts(*index)) {
            ivf_of(part).remove_ids(faiss::IDSelectorRange(0, 100));
        }
        dynamic_cast<faiss::IndexShards&>(*index).syncWithSubIndexes();
        expect_complete(*index, kRows - 100);
    }
}

TEST_P(WrapperTest, IndexReplicas) {
    auto index = collected<faiss::IndexReplicas>(key, true);
    make_multi_assign(index, nearest_policy());
    index->train(kRows, rows.data());
    index->add(kRows, rows.data());
    EXPECT_EQ(index->ntotal, kRows);
    set_nprobe(*index, kLists);
    const Results results = search(*index, query_rows(), kRows);
    expect_well_formed(results, faiss::METRIC_L2);
    EXPECT_EQ(std::count(results.labels.begin(), results.labels.end(), -1), 0);
    for (IVFMultiAssign* part : multi_assign_parts(*index)) {
        EXPECT_EQ(part->nentries(), size_t(2 * kRows));
        set_direct_map_type(ivf_of(part), faiss::DirectMap::Array);
    }
    index->reconstruct(3, row.data());
    if (exact) {
        EXPECT_TRUE(std::equal(row.begin(), row.end(), &rows[3 * kDim]));
    }
    for (IVFMultiAssign* part : multi_assign_parts(*index)) {
        set_direct_map_type(ivf_of(part), faiss::DirectMap::NoMap);
        EXPECT_EQ(ivf_of(part).remove_ids(faiss::IDSelectorRange(10, 60)), 50u);
    }
    dynamic_cast<faiss::IndexReplicas&>(*index).syncWithSubIndexes();
    EXPECT_EQ(index->ntotal, kRows - 50);
    for (idx_t label : search(*index, query_rows(), kRows - 50).labels) {
        ASSERT_TRUE(label >= 60 || (label >= 0 && label < 10)) << label;
    }
}

/// A key of faiss::index_factory for each IVF class of FAISS, and whether it
/// has a multi-assign form.
struct IvfClass {
    const char* key;
    bool offered;
};

constexpr IvfClass kIvfClasses[] = {
        {"IVF8,Flat", true},
        {"IVF8,SQ8", true},
        {"IVF8,PQ4", true},
        {"IVF8,PQ4x4fs", true},
        {"IVF8,PQ4x4fsr", true},
        {"IVF8,FlatDedup", false},
        {"IVF8,PQ4+2", false}, // IndexIVFPQR
        {"IVF8,RQ2x4", false},
        {"IVF8,LSQ2x4", false},
        {"IVF8,PRQ2x2x4", false},
        {"IVF8,PLSQ2x2x4", false},
        {"IVF8,RQ2x4fs_Nrq2x4", false},
        {"IVF8,LSQ2x4fs_Nlsq2x4", false},
        {"IVF8,PRQ2x2x4fs_Nrq2x4", false},
        {"IVF8,PLSQ2x2x4fs_Nlsq2x4", false},
        {"IVF8,ITQ8,SH2.5", false}, // IndexIVFSpectralHash below a transform
#if FAISS_FLASHGMM_HAS_RABITQ
        {"IVF8,RaBitQ", true},
#endif
#if FAISS_FLASHGMM_HAS_RABITQ_FAST_SCAN
        {"IVF8,RaBitQfs", true},
#endif
#if FAISS_FLASHGMM_AT_LEAST(1, 15, 0)
        {"IVF8,FlatPanorama4", false},
        {"IVF8,EDEN4", false},
#endif
};

TEST(MakeMultiAssign, EveryIvfClassOfFaissIsTakenOrRefusedByName) {
    for (const auto [key, offered] : kIvfClasses) {
        SCOPED_TRACE(key);
        std::unique_ptr<faiss::Index> index(faiss::index_factory(kDim, key));
        const faiss::IndexIVF* ivf =
                faiss::ivflib::extract_index_ivf(index.get());
        const std::string type = typeid(*ivf).name();
        if (offered) {
            make_multi_assign(index);
            EXPECT_EQ(multi_assign_parts(*index).size(), 1u);
        } else {
            const std::string message =
                    message_of([&] { make_multi_assign(index); });
            EXPECT_NE(
                    message.find(type + " has no multi-assign form"),
                    std::string::npos)
                    << message;
            EXPECT_EQ(
                    typeid(*faiss::ivflib::extract_index_ivf(index.get())),
                    typeid(*ivf));
        }
    }
}

#if FAISS_FLASHGMM_AT_LEAST(1, 7, 4)
TEST(MakeMultiAssign, AQuantizerBesideTheIndexIsRefused) {
    faiss::IndexFlatL2 quantizer(kDim);
    std::unique_ptr<faiss::Index> index =
            std::make_unique<faiss::IndexIVFIndependentQuantizer>(
                    &quantizer,
                    dynamic_cast<faiss::IndexIVF*>(
                            faiss::index_factory(kDim, "IVF8,Flat")));
    EXPECT_NE(message_of([&] { make_multi_assign(index); }), "");
    delete dynamic_cast<faiss::IndexIVFIndependentQuantizer&>(*index).index_ivf;
}
#endif

TEST(MakeMultiAssign, FilledShardsAreTakenOverInOrder) {
    auto index = collected<faiss::IndexShards>("IVF32,Flat", false);
    index->train(kRows, base_rows().data());
    index->add(kRows, base_rows().data());
    const Results before = search(*index, query_rows(), 10);
    make_multi_assign(index);
    EXPECT_EQ(index->ntotal, kRows);
    EXPECT_EQ(search(*index, query_rows(), 10), before);
}

TEST(MakeMultiAssign, OneBadShardLeavesAllAsTheyAre) {
    auto index = collected<faiss::IndexShards>("IVF32,Flat", false);
    auto& shards = dynamic_cast<faiss::IndexShards&>(*index);
    shards.addIndex(faiss::index_factory(kDim, "IVF32,RQ2x4"));
    EXPECT_NE(message_of([&] { make_multi_assign(index); }), "");
    EXPECT_EQ(shards.count(), 3);
    EXPECT_TRUE(multi_assign_parts(*index).empty());

    std::unique_ptr<faiss::Index> none =
            std::make_unique<faiss::IndexShards>(kDim);
    EXPECT_NE(message_of([&] { make_multi_assign(none); }), "");
    auto borrowed = collected<faiss::IndexReplicas>("IVF32,Flat", false);
    auto& replicas = dynamic_cast<faiss::IndexReplicas&>(*borrowed);
    replicas.FAISS_FLASHGMM_OWN_MEMBERS = false;
    EXPECT_NE(message_of([&] { make_multi_assign(borrowed); }), "");
    replicas.FAISS_FLASHGMM_OWN_MEMBERS = true;
}

} // namespace
} // namespace faiss_flashgmm
