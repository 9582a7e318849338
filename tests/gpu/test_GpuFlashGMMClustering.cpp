#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include <faiss/IndexFlat.h>
#include <faiss/impl/FaissException.h>

#include <faiss_flashgmm/GpuFlashGMMClustering.h>

namespace {

using namespace faiss_flashgmm;

constexpr int kDim = 24;
constexpr int kComponents = 40;

std::vector<float> blobs(int64_t n) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> centres(kComponents * kDim);
    for (float& v : centres) {
        v = 3 * normal(random);
    }
    std::vector<float> x(n * kDim);
    for (int64_t i = 0; i < n; i++) {
        for (int j = 0; j < kDim; j++) {
            x[i * kDim + j] =
                    100 + centres[i % kComponents * kDim + j] + normal(random);
        }
    }
    return x;
}

template <class Clustering>
void configure(Clustering& clustering) {
    clustering.niter = 15;
    clustering.max_points_per_centroid = 1000;
}

TEST(GpuFlashGMMClustering, ReachesTheLikelihoodOfTheCpu) {
    if (!GpuFlashGMMClustering::available()) {
        GTEST_SKIP() << GpuFlashGMMClustering::why_unavailable();
    }
    const std::vector<float> x = blobs(20'000);
    FlashGMMClustering cpu(kDim, kComponents);
    GpuFlashGMMClustering gpu(kDim, kComponents);
    configure(cpu);
    configure(gpu);
    faiss::IndexFlatL2 cpu_index(kDim);
    faiss::IndexFlatL2 gpu_index(kDim);
    cpu.train(20'000, x.data(), cpu_index);
    gpu.train(20'000, x.data(), gpu_index);
    EXPECT_EQ(gpu_index.ntotal, kComponents);
    ASSERT_EQ(gpu.em_stats.size(), cpu.em_stats.size());
    EXPECT_NEAR(
            gpu.em_stats.back().log_likelihood,
            cpu.em_stats.back().log_likelihood,
            2e-3 * std::abs(cpu.em_stats.back().log_likelihood));

    // Ties aside, both say the same of a row under the same mixture.
    cpu.mixture = gpu.mixture;
    std::vector<idx_t> cpu_ids(2000 * 2), gpu_ids(2000 * 2);
    std::vector<float> cpu_scores(2000 * 2), gpu_scores(2000 * 2);
    cpu.assign(2000, x.data(), 2, cpu_ids.data(), cpu_scores.data());
    gpu.assign(2000, x.data(), 2, gpu_ids.data(), gpu_scores.data());
    for (size_t i = 0; i < cpu_scores.size(); i++) {
        ASSERT_NEAR(
                gpu_scores[i],
                cpu_scores[i],
                1e-4 * (1 + std::abs(cpu_scores[i])))
                << "entry " << i;
    }
}

TEST(GpuFlashGMMClustering, BadRowIsNamed) {
    if (!GpuFlashGMMClustering::available()) {
        GTEST_SKIP() << GpuFlashGMMClustering::why_unavailable();
    }
    std::vector<float> x = blobs(1000);
    x[7 * kDim + 2] = NAN;
    GpuFlashGMMClustering gpu(kDim, kComponents);
    faiss::IndexFlatL2 index(kDim);
    try {
        gpu.train(1000, x.data(), index);
        FAIL() << "no exception";
    } catch (const faiss::FaissException& e) {
        EXPECT_NE(std::string(e.what()).find("row 7"), std::string::npos)
                << e.what();
    }
    EXPECT_EQ(index.ntotal, 0);
}

TEST(GpuFlashGMMClustering, MissingDeviceIsAnErrorOrFallsBack) {
    const std::vector<float> x = blobs(2000);
    GpuFlashGMMClustering gpu(kDim, kComponents);
    gpu.niter = 2;
    gpu.cuda.devices = {0, 1000};
    faiss::IndexFlatL2 index(kDim);
    EXPECT_FALSE(GpuFlashGMMClustering::available(1000));
    EXPECT_THROW(gpu.train(2000, x.data(), index), faiss::FaissException);
    EXPECT_EQ(index.ntotal, 0);
    gpu.cpu_fallback = true;
    gpu.train(2000, x.data(), index);
    EXPECT_EQ(index.ntotal, kComponents);
}

} // namespace
