#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <faiss/IndexFlat.h>
#include <faiss/impl/FaissException.h>

#include <faiss_flashgmm/Demand.h>
#include <faiss_flashgmm/GpuFlashGMMClustering.h>

namespace faiss_flashgmm {
namespace {

constexpr int kDim = 20;
constexpr idx_t kLists = 30;
constexpr int kWidth = 2;

/// Integers about one of the centers, so that all distances are exact; large
/// ones, so that no row is as far from one centroid as from another.
std::vector<float> whole_rows(idx_t n, unsigned seed) {
    std::mt19937 centers(7), random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> center(60 * kDim);
    for (float& v : center) {
        v = 300 * normal(centers);
    }
    std::vector<float> x(n * kDim);
    for (idx_t i = 0; i < n; i++) {
        const int c = random() % 60;
        for (int j = 0; j < kDim; j++) {
            x[i * kDim + j] =
                    std::round(center[c * kDim + j] + 150 * normal(random));
        }
    }
    return x;
}

struct Learned {
    Demand demand;
    std::vector<idx_t> extra;
    std::vector<float> scores;
};

Learned learn(
        const faiss::IndexFlat& quantizer,
        const DemandParameters& parameters,
        const std::vector<float>& x,
        const std::vector<float>& queries) {
    const idx_t n = x.size() / kDim;
    Learned learned;
    learned.demand.learn(
            quantizer,
            parameters,
            n,
            x.data(),
            queries.size() / kDim,
            queries.empty() ? nullptr : queries.data());
    std::vector<idx_t> primary(n);
    quantizer.assign(n, x.data(), primary.data());
    learned.extra.assign(n * kWidth, -1);
    learned.scores.assign(n * kWidth, -std::numeric_limits<float>::infinity());
    learned.demand.extra_lists(
            quantizer,
            parameters,
            n,
            x.data(),
            primary.data(),
            kWidth,
            learned.extra.data(),
            learned.scores.data());
    return learned;
}

/// What the CPU finds in all lists the GPU finds among all rows.
TEST(GpuDemand, ChoosesTheListsThatTheCpuChooses) {
    if (const std::string why = GpuFlashGMMClustering::why_unavailable();
        !why.empty()) {
        GTEST_SKIP() << why;
    }
    const std::vector<float> x = whole_rows(2000, 1);
    const std::vector<float> centroids = whole_rows(kLists, 8);
    for (const faiss::MetricType metric :
         {faiss::METRIC_L2, faiss::METRIC_INNER_PRODUCT}) {
        faiss::IndexFlat quantizer(kDim, metric);
        quantizer.add(kLists, centroids.data());
        for (const std::vector<float>& queries :
             {std::vector<float>(), whole_rows(500, 3)}) {
            DemandParameters parameters;
            parameters.neighbors = 50;
            parameters.reach = kLists;
            parameters.search = NeighborSearch::cpu;
            const Learned cpu = learn(quantizer, parameters, x, queries);
            parameters.search = NeighborSearch::gpu;
            const Learned gpu = learn(quantizer, parameters, x, queries);
            EXPECT_EQ(gpu.demand.radii, cpu.demand.radii);
            EXPECT_EQ(gpu.demand.order, cpu.demand.order);
            EXPECT_EQ(gpu.demand.probes, cpu.demand.probes);
            EXPECT_EQ(gpu.demand.prices, cpu.demand.prices);
            EXPECT_EQ(gpu.extra, cpu.extra);
            EXPECT_EQ(gpu.scores, cpu.scores);
            EXPECT_GT(
                    std::ranges::count_if(
                            gpu.extra, [](idx_t list) { return list >= 0; }),
                    100);
        }
    }
}

TEST(GpuDemand, SaysWhyItCannot) {
    const std::vector<float> x = whole_rows(2000, 1);
    faiss::IndexFlat quantizer(kDim, faiss::METRIC_L2);
    quantizer.add(kLists, x.data());
    DemandParameters parameters;
    parameters.search = NeighborSearch::gpu;
    const bool there = GpuFlashGMMClustering::available();
    if (there) {
        parameters.neighbors = 1025;
    }
    Demand demand;
    try {
        demand.learn(quantizer, parameters, 2000, x.data(), 0, nullptr);
        FAIL() << "learned";
    } catch (const faiss::FaissException& error) {
        EXPECT_NE(
                error.msg.find(
                        there ? "1025"
                              : GpuFlashGMMClustering::why_unavailable()),
                std::string::npos)
                << error.msg;
    }
    EXPECT_TRUE(demand.empty());
}

} // namespace
} // namespace faiss_flashgmm
