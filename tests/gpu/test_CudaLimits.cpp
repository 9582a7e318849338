#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include <faiss_flashgmm/em/EMSolver.h>
#include <faiss_flashgmm/gpu/CudaBackend.h>
#include <faiss_flashgmm/gpu/CudaRows.h>
#include <faiss_flashgmm/utils/Philox.h>

#include "conformance/backend_conformance.h"
#include "device.h"

// Sizes at which counters and indices of 16, 24 and 32 bits end.

namespace {

using namespace faiss_flashgmm;
using conformance::Problem;
using S = SufficientStats;

TEST(CudaLimits, ComponentsPast16And20Bits) {
    SKIP_WITHOUT_DEVICE();
    constexpr int64_t kD = 4;
    for (const int64_t k : {65'535, 65'536, 65'537, 1'048'576}) {
        SCOPED_TRACE(k);
        const int64_t n = k + 1;
        std::vector<float> x(n * kD);
        Philox random(3, uint64_t(k));
        for (float& v : x) {
            v = float(random.uniform());
        }
        CudaBackend backend;
        EMOptions options;
        options.niter = 1;
        options.init = Initialization::random_rows;
        MemoryRows rows(n, kD, x.data());
        const EMResult result = EMSolver(backend, options).fit(rows, k);
        EXPECT_TRUE(std::isfinite(result.iterations[0].log_likelihood));
        double weight = 0;
        for (const double w : result.mixture.weights) {
            weight += w;
        }
        EXPECT_NEAR(weight, 1, 1e-9);
    }
}

TEST(CudaLimits, CoordinatesPast32Bits) {
    SKIP_WITHOUT_DEVICE();
    // A block of rows, over and over: its statistics times the repeats.
    const Problem p = conformance::whole_numbers(8);
    const int64_t d = p.mixture.d;
    const int64_t repeats = (int64_t(1) << 32) / (p.n * d) + 2;
    const std::vector<std::byte> block =
            conformance::encode(p.x, RowType::uint8);
    gpu::DeviceMemory memory;
    gpu::DeviceBuffer<std::byte> x(memory);
    x.reserve(block.size() * repeats, "test data");
    for (int64_t i = 0; i < repeats; i++) {
        FLASHGMM_CUDA(cudaMemcpyAsync(
                x.get() + i * block.size(),
                block.data(),
                block.size(),
                cudaMemcpyHostToDevice));
    }
    FLASHGMM_CUDA(cudaDeviceSynchronize());
    CudaBackend backend;
    const Mixture mixture = p.conditioning.to_conditioned(p.mixture);
    backend.begin(mixture, p.conditioning);
    backend.accumulate(p.n, p.x.data(), nullptr);
    SufficientStats expected = backend.finish();
    for (double& v : expected.flat()) {
        v *= double(repeats);
    }
    backend.begin(mixture, p.conditioning);
    backend.accumulate(p.n * repeats, {x.get(), RowType::uint8}, nullptr);
    const SufficientStats& actual = backend.finish();
    // Each side sums up to 128 pairs in fp32, in any order.
    EXPECT_LT(difference(actual, expected), 2 * 128 * 0x1p-24);
    EXPECT_EQ(actual.scalar(S::kRows), double(p.n * repeats));
    EXPECT_EQ(actual.scalar(S::kWeight), double(p.n * repeats));
}

/// 95% of 2^25 rows are at one place: sums and counts end up past 2^24.
TEST(CudaLimits, CountsPast24Bits) {
    SKIP_WITHOUT_DEVICE();
    const int64_t n = int64_t(1) << 25;
    std::vector<int8_t> bytes(n);
    for (int64_t i = 0; i < n; i++) {
        bytes[i] = int8_t(i % 20 == 0 ? 100 + i / 20 % 5 : i % 3);
    }
    MemoryRows rows(n, 1, {bytes.data(), RowType::int8});
    CudaBackend backend;
    EMOptions options;
    options.niter = 10;
    const EMResult result = EMSolver(backend, options).fit(rows, 2);
    const int low = result.mixture.means[0] < result.mixture.means[1] ? 0 : 1;
    EXPECT_NEAR(result.mixture.weights[low], 0.95, 1e-6);
    EXPECT_NEAR(result.mixture.means[low], 1, 1e-3);
    // fp16 rounds rows to 2^-11 of their distance from the data's mean, all
    // equal ones alike.
    EXPECT_NEAR(result.mixture.means[1 - low], 102, 0.05);
}

} // namespace
