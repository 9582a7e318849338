#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

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

/// A copy in device memory.
template <class T>
struct DeviceCopy {
    explicit DeviceCopy(const std::vector<T>& v) {
        void* memory = nullptr;
        EXPECT_EQ(cudaMalloc(&memory, v.size() * sizeof(T)), cudaSuccess);
        data = static_cast<T*>(memory);
        EXPECT_EQ(
                cudaMemcpy(
                        data,
                        v.data(),
                        v.size() * sizeof(T),
                        cudaMemcpyHostToDevice),
                cudaSuccess);
    }
    ~DeviceCopy() {
        cudaFree(data);
    }
    DeviceCopy(const DeviceCopy&) = delete;

    T* data;
};

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

std::string message_of(const std::function<void()>& work) {
    try {
        work();
    } catch (const faiss::FaissException& e) {
        return e.what();
    }
    return "";
}

/// The same error as on the CPU, wherever the rows are, and nothing changes.
TEST(GpuFlashGMMClustering, BadInputIsNamedAndChangesNothing) {
    if (!GpuFlashGMMClustering::available()) {
        GTEST_SKIP() << GpuFlashGMMClustering::why_unavailable();
    }
    constexpr int kN = 1000;
    const std::vector<float> good = blobs(kN);
    GpuFlashGMMClustering gpu(kDim, kComponents);
    FlashGMMClustering cpu(kDim, kComponents);
    configure(gpu);
    faiss::IndexFlatL2 index(kDim);
    gpu.train(kN, good.data(), index);
    const std::vector<float> centroids = gpu.centroids;
    const float infinity = std::numeric_limits<float>::infinity();
    struct Bad {
        int at; ///< coordinate, or ~row of a weight
        float value;
        const char* says;
    };
    for (const Bad& bad :
         {Bad{7 * kDim + 2, NAN, "row 7 has nan in column 2"},
          Bad{(kN - 1) * kDim, -infinity, "row 999 has -inf in column 0"},
          Bad{~31, NAN, "the weight of row 31 is nan"},
          Bad{~0, -1, "the weight of row 0 is -1"}}) {
        std::vector<float> x = good, w(kN, 1.0f);
        (bad.at < 0 ? w[~bad.at] : x[bad.at]) = bad.value;
        const DeviceCopy device_x(x), device_w(w);
        gpu.centroids.clear();
        EXPECT_NE(
                message_of([&] {
                    gpu.train(kN, x.data(), index, w.data());
                }).find(bad.says),
                std::string::npos);
        EXPECT_NE(
                message_of([&] {
                    gpu.train(kN, device_x.data, index, device_w.data);
                }).find(bad.says),
                std::string::npos);
        EXPECT_EQ(index.ntotal, kComponents);
        EXPECT_EQ(gpu.mixture.means, centroids);
    }
    const DeviceCopy device_x(good);
    EXPECT_NE(
            message_of([&] {
                gpu.train(8, device_x.data, index);
            }).find("n = 8"),
            std::string::npos);
    EXPECT_NE(
            message_of([&] {
                gpu.train(kN, device_x.data, index, good.data());
            }).find("weights"),
            std::string::npos);
    gpu.train(kN, good.data(), index); // still of use
    EXPECT_EQ(index.ntotal, kComponents);
}

TEST(GpuFlashGMMClustering, RowsMayBeOnTheDeviceAndOfAnyType) {
    if (!GpuFlashGMMClustering::available()) {
        GTEST_SKIP() << GpuFlashGMMClustering::why_unavailable();
    }
    constexpr int kN = 3000;
    std::vector<float> x = blobs(kN), w(kN);
    std::vector<uint8_t> bytes;
    for (int i = 0; i < kN; i++) {
        w[i] = float(i % 4);
    }
    for (float& v : x) {
        v = std::clamp(std::round(10 * v - 900), 0.0f, 255.0f);
        bytes.push_back(uint8_t(v));
    }
    faiss::IndexFlatL2 index(kDim);
    std::vector<std::vector<float>> centroids;
    const auto fit = [&](auto&& train) {
        GpuFlashGMMClustering gpu(kDim, kComponents);
        configure(gpu);
        gpu.max_points_per_centroid = 50; // fewer than there are
        gpu.cuda.deterministic = true;
        train(gpu);
        centroids.push_back(gpu.centroids);
    };
    const DeviceCopy device_x(x), device_w(w);
    const DeviceCopy device_bytes(bytes);
    fit([&](auto& gpu) { gpu.train(kN, x.data(), index, w.data()); });
    fit([&](auto& gpu) { gpu.train(kN, device_x.data, index, device_w.data); });
    const RowView typed(bytes.data(), RowType::uint8);
    fit([&](auto& gpu) { gpu.train(kN, typed, index, w.data()); });
    const RowView in_place(device_bytes.data, RowType::uint8);
    fit([&](auto& gpu) { gpu.train(kN, in_place, index, device_w.data); });
    for (size_t i = 1; i < centroids.size(); i++) {
        EXPECT_EQ(centroids[i], centroids[0]) << "way " << i;
    }
}

TEST(GpuFlashGMMClustering, DegenerateRowsEndWell) {
    if (!GpuFlashGMMClustering::available()) {
        GTEST_SKIP() << GpuFlashGMMClustering::why_unavailable();
    }
    faiss::IndexFlatL2 index(kDim);
    // All alike; five values; one component; as many as rows.
    for (const auto& [n, values, k] :
         {std::array{100, 1, 8},
          std::array{100, 5, 10},
          std::array{100, 100, 1},
          std::array{40, 40, 40}}) {
        std::vector<float> x(n * kDim);
        for (int i = 0; i < n * kDim; i++) {
            x[i] = 3 + float(i / kDim % values) * float(i % kDim + 1);
        }
        GpuFlashGMMClustering gpu(kDim, k);
        FlashGMMClustering cpu(kDim, k);
        configure(gpu);
        configure(cpu);
        gpu.min_points_per_centroid = cpu.min_points_per_centroid = 0;
        gpu.train(n, x.data(), index);
        cpu.train(n, x.data(), index);
        for (const float v : gpu.centroids) {
            EXPECT_TRUE(std::isfinite(v));
        }
        EXPECT_LE(gpu.distinct_centroids, std::min(values, k));
        const double expected = cpu.em_stats.back().log_likelihood;
        EXPECT_NEAR(
                gpu.em_stats.back().log_likelihood,
                expected,
                0.02 * std::abs(expected) + 1e-3);
    }
}

/// An offset cancels, but for rows about as near to two blobs: the shift
/// rounds, so that fp16 rounds rows in other places.
TEST(GpuFlashGMMClustering, OffsetsDoNotMatter) {
    if (!GpuFlashGMMClustering::available()) {
        GTEST_SKIP() << GpuFlashGMMClustering::why_unavailable();
    }
    std::vector<float> x = blobs(4000);
    for (float& v : x) {
        v = std::round(v * 4); // exact with the offset
    }
    std::vector<float> shifted = x;
    for (float& v : shifted) {
        v += 1e6f;
    }
    faiss::IndexFlatL2 index(kDim);
    std::vector<idx_t> ids[2];
    for (int i = 0; i < 2; i++) {
        GpuFlashGMMClustering gpu(kDim, kComponents);
        configure(gpu);
        gpu.cuda.deterministic = true;
        const float* rows = i ? shifted.data() : x.data();
        gpu.train(4000, rows, index);
        ids[i].resize(4000);
        std::vector<float> scores(4000);
        gpu.assign(4000, rows, 1, ids[i].data(), scores.data());
    }
    int same = 0;
    for (int i = 0; i < 4000; i++) {
        same += ids[0][i] == ids[1][i];
    }
    EXPECT_GT(same, 3900);
}

TEST(GpuFlashGMMClustering, SameSeedSameCentroidsInDeterministicMode) {
    if (!GpuFlashGMMClustering::available()) {
        GTEST_SKIP() << GpuFlashGMMClustering::why_unavailable();
    }
    const std::vector<float> x = blobs(20'000);
    std::vector<float> first;
    for (int i = 0; i < 3; i++) {
        GpuFlashGMMClustering gpu(kDim, kComponents);
        configure(gpu);
        gpu.cuda.deterministic = true;
        faiss::IndexFlatL2 index(kDim);
        gpu.train(20'000, x.data(), index);
        if (i == 0) {
            first = gpu.centroids;
        }
        EXPECT_EQ(gpu.centroids, first);
    }
}

TEST(GpuFlashGMMClustering, WarmStartFrozenAndSpherical) {
    if (!GpuFlashGMMClustering::available()) {
        GTEST_SKIP() << GpuFlashGMMClustering::why_unavailable();
    }
    const std::vector<float> x = blobs(5000);
    faiss::IndexFlatL2 index(kDim);
    GpuFlashGMMClustering gpu(kDim, kComponents);
    configure(gpu);
    gpu.train(5000, x.data(), index);
    const double cold = gpu.em_stats[0].objective;
    gpu.train(5000, x.data(), index); // from where it ended
    EXPECT_LE(gpu.em_stats[0].objective, cold);
    gpu.centroids.resize(7 * kDim);
    const std::vector<float> given = gpu.centroids;
    gpu.frozen_centroids = true;
    gpu.train(5000, x.data(), index);
    EXPECT_TRUE(std::equal(given.begin(), given.end(), gpu.centroids.begin()));

    faiss::IndexFlatIP product(kDim);
    GpuFlashGMMClustering spherical(kDim, kComponents);
    configure(spherical);
    spherical.nredo = 2;
    spherical.train(5000, x.data(), product);
    for (int c = 0; c < kComponents; c++) {
        double norm = 0;
        for (int j = 0; j < kDim; j++) {
            const double v = spherical.centroids[c * kDim + j];
            norm += v * v;
        }
        EXPECT_NEAR(norm, 1, 1e-5);
    }
}

TEST(GpuFlashGMMClustering, RunsOutOfMemoryAndGoesOn) {
    if (!GpuFlashGMMClustering::available()) {
        GTEST_SKIP() << GpuFlashGMMClustering::why_unavailable();
    }
    const std::vector<float> x = blobs(40'000);
    faiss::IndexFlatL2 index(kDim);
    GpuFlashGMMClustering large(kDim, 30'000);
    large.min_points_per_centroid = 0;
    large.cuda.memory_limit = 8 << 20;
    EXPECT_NE(
            message_of([&] {
                large.train(40'000, x.data(), index);
            }).find("bytes are free"),
            std::string::npos);
    EXPECT_EQ(index.ntotal, 0);
    large.k = kComponents;
    large.cuda.memory_limit = 256 << 20;
    large.train(40'000, x.data(), index);
    EXPECT_EQ(index.ntotal, kComponents);
}

TEST(GpuFlashGMMClustering, CanBeStopped) {
    if (!GpuFlashGMMClustering::available()) {
        GTEST_SKIP() << GpuFlashGMMClustering::why_unavailable();
    }
    const std::vector<float> x = blobs(5000);
    faiss::IndexFlatL2 index(kDim);
    GpuFlashGMMClustering gpu(kDim, kComponents);
    configure(gpu);
    gpu.gmm.progress = [](const Progress& progress) {
        if (progress.stage == Progress::Stage::em && progress.iteration == 3) {
            throw std::runtime_error("enough");
        }
    };
    EXPECT_THROW(gpu.train(5000, x.data(), index), std::runtime_error);
    EXPECT_EQ(index.ntotal, 0);
    gpu.gmm.progress = {};
    gpu.train(5000, x.data(), index);
    EXPECT_EQ(index.ntotal, kComponents);
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
