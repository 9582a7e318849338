#include <faiss_flashgmm/gpu_index.h>

#include <cmath>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <faiss/IndexIDMap.h>
#include <faiss/IndexPreTransform.h>
#include <faiss/VectorTransform.h>
#include <faiss/gpu/GpuAutoTune.h>
#include <faiss/gpu/GpuClonerOptions.h>
#include <faiss/gpu/GpuIndexIVF.h>
#include <faiss/gpu/StandardGpuResources.h>
#include <faiss/index_factory.h>

#include <faiss_flashgmm/index_tree.h>
#include <faiss_flashgmm/make_multi_assign.h>

#include "face/multi_assign_cases.h"

namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;

/// Asked of CUDA: FAISS ends the process where there is no driver.
bool has_device() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

#define FLASHGMM_NEEDS_DEVICE()                    \
    if (!has_device()) {                           \
        GTEST_SKIP() << "there is no CUDA device"; \
    }

std::vector<Case> cases_on_gpu() {
    std::vector<Case> cases;
    for (const Case& c : all_cases()) {
        if (c.codec == Codec::flat || c.codec == Codec::sq8 ||
            c.codec == Codec::pq) {
            cases.push_back(c);
        }
    }
    return cases;
}

/// make_filled(), with PQ codes of the 8 bits that kernels of FAISS read.
MultiIndex make_filled_for_gpu(const Case& c) {
    if (c.codec != Codec::pq) {
        return make_filled(c);
    }
    std::unique_ptr<faiss::Index> index(
            faiss::index_factory(kDim, "IVF32,PQ8", c.metric));
    MultiAssign assigner;
    assigner.policy = c.policy;
    MultiIndex made;
    made.multi = make_multi_assign(index, assigner);
    made.ivf.reset(dynamic_cast<faiss::IndexIVF*>(index.release()));
    made->train(kRows, base_rows().data());
    made->add(kRows, base_rows().data());
    return made;
}

/// Rounding differs, and for encoded vectors the order of sums.
void expect_near(const Results& a, const Results& b) {
    ASSERT_EQ(a.distances.size(), b.distances.size());
    for (size_t i = 0; i < a.distances.size(); i++) {
        ASSERT_NEAR(
                a.distances[i],
                b.distances[i],
                1e-3 * (1 + std::abs(b.distances[i])))
                << "result " << i % a.k << " of query " << i / a.k;
    }
}

void set_nprobe(faiss::Index& index, size_t nprobe) {
    faiss::gpu::GpuParameterSpace().set_index_parameter(
            &index, "nprobe", double(nprobe));
}

struct GpuIndexTest : ::testing::TestWithParam<Case> {
    void SetUp() override {
        FLASHGMM_NEEDS_DEVICE();
    }
};

INSTANTIATE_TEST_SUITE_P(
        MultiAssign,
        GpuIndexTest,
        ::testing::ValuesIn(cases_on_gpu()),
        case_name);

TEST_P(GpuIndexTest, FindsWhatTheIndexFindsAndRepeatsNothing) {
    const MultiIndex index = make_filled_for_gpu(GetParam());
    ASSERT_GT(index.multi->counts().copies, 0u);
    faiss::gpu::StandardGpuResources resources;
    const auto copy = index_cpu_to_gpu(&resources, 0, *index);
    EXPECT_EQ(copy->ntotal, kRows);
    EXPECT_EQ(copy->max_copies, index.multi->counts().max_copies);
    EXPECT_TRUE(dynamic_cast<faiss::gpu::GpuIndexIVF*>(copy->index));
    for (size_t nprobe : {1, 4, kLists}) {
        SCOPED_TRACE(nprobe);
        index->nprobe = nprobe;
        set_nprobe(*copy, nprobe);
        for (idx_t k : {1, 10, 200}) {
            SCOPED_TRACE(k);
            const Results results = search(*copy, query_rows(), k);
            expect_well_formed(results, index->metric_type);
            expect_near(results, search(*index, query_rows(), k));
        }
    }
}

TEST_P(GpuIndexTest, ComesBackWithAllCopies) {
    const MultiIndex index = make_filled_for_gpu(GetParam());
    faiss::gpu::StandardGpuResources resources;
    const auto copy = index_cpu_to_gpu(&resources, 0, *index);
    auto back = index_gpu_to_cpu(*copy, index.multi->assigner);
    auto* multi = find_multi_assign(*back);
    ASSERT_TRUE(multi);
    EXPECT_EQ(back->ntotal, kRows);
    EXPECT_EQ(multi->nentries(), index.multi->nentries());
    EXPECT_EQ(multi->assigner.policy, GetParam().policy);
    auto* ivf = dynamic_cast<faiss::IndexIVF*>(back.get());
    ASSERT_TRUE(ivf);
    for (idx_t id = 0; id < kRows; id += 97) {
        EXPECT_EQ(lists_of(*ivf, id), lists_of(*index, id));
    }
    index->nprobe = ivf->nprobe = 4;
    const Results results = search(*back, query_rows(), 10);
    expect_well_formed(results, index->metric_type);
    expect_near(results, search(*index, query_rows(), 10));
}

TEST(GpuIndex, LooksThroughTransformsAndIdMaps) {
    FLASHGMM_NEEDS_DEVICE();
    faiss::RandomRotationMatrix rotation(kDim, kDim);
    rotation.init(3);
    MultiIndex inner = make_untrained({});
    faiss::IndexPreTransform chain(&rotation, inner.ivf.get());
    chain.train(kRows, base_rows().data());
    faiss::IndexIDMap map(&chain);
    std::vector<idx_t> ids(kRows);
    for (idx_t i = 0; i < kRows; i++) {
        ids[i] = (idx_t(1) << 40) + 3 * i;
    }
    map.add_with_ids(kRows, base_rows().data(), ids.data());
    ASSERT_GT(inner.multi->counts().copies, 0u);

    faiss::gpu::StandardGpuResources resources;
    const auto copy = index_cpu_to_gpu(&resources, 0, map);
    inner->nprobe = 4;
    set_nprobe(*copy, 4);
    const Results results = search(*copy, query_rows(), 10);
    expect_well_formed(results, faiss::METRIC_L2);
    expect_near(results, search(map, query_rows(), 10));
    EXPECT_GE(results.labels[0], idx_t(1) << 40);
}

TEST(GpuIndex, StoresAddedVectorsOnce) {
    FLASHGMM_NEEDS_DEVICE();
    const MultiIndex index = make_filled({});
    faiss::gpu::StandardGpuResources resources;
    const auto copy = index_cpu_to_gpu(&resources, 0, *index);
    copy->add(kQueries, query_rows().data());
    EXPECT_EQ(copy->ntotal, kRows + kQueries);
    set_nprobe(*copy, 1);
    const Results results = search(*copy, query_rows(), 3);
    expect_well_formed(results, faiss::METRIC_L2);
    for (idx_t i = 0; i < kQueries; i++) {
        EXPECT_EQ(results.labels[3 * i], kRows + i);
    }
    const auto back = index_gpu_to_cpu(*copy);
    EXPECT_EQ(back->ntotal, kRows + kQueries);
    EXPECT_EQ(
            find_multi_assign(*back)->nentries(),
            index.multi->nentries() + kQueries);
}

TEST(GpuIndex, RefusesWhatHasNoGpuForm) {
    FLASHGMM_NEEDS_DEVICE();
    faiss::gpu::StandardGpuResources resources;
    const MultiIndex fast_scan = make_filled({.codec = Codec::fast_scan});
    EXPECT_NE(
            message_of([&] { index_cpu_to_gpu(&resources, 0, *fast_scan); }),
            "");
    const MultiIndex flat = make_filled({});
    faiss::gpu::GpuClonerOptions options;
    options.indicesOptions = faiss::gpu::INDICES_IVF;
    EXPECT_NE(
            message_of([&] {
                index_cpu_to_gpu(&resources, 0, *flat, &options);
            }).find("INDICES_IVF"),
            std::string::npos);
    EXPECT_NE(message_of([&] { index_cpu_to_gpu(nullptr, 0, *flat); }), "");
    EXPECT_NE(message_of([&] { index_cpu_to_gpu(&resources, 99, *flat); }), "");
    const auto stock = stock_twin(*flat);
    EXPECT_NE(
            message_of([&] {
                index_cpu_to_gpu(&resources, 0, *stock);
            }).find("no multi-assign part"),
            std::string::npos);
}

} // namespace
} // namespace faiss_flashgmm
