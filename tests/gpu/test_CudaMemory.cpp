#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <faiss_flashgmm/em/EMSolver.h>
#include <faiss_flashgmm/gpu/CudaBackend.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Philox.h>

#include "conformance/backend_conformance.h"
#include "device.h"

namespace {

using namespace faiss_flashgmm;
using conformance::Case;
using conformance::Problem;
using conformance::statistics_of;

constexpr int64_t kMiB = int64_t(1) << 20;

/// Rows made up as they are read.
class GeneratedRows : public RowSource {
   public:
    GeneratedRows(int64_t n, int64_t d) : n_(n), d_(d) {}

    int64_t size() const override {
        return n_;
    }
    int64_t dim() const override {
        return d_;
    }
    Rows read(int64_t begin, int64_t count) override {
        reads++;
        x_.resize(count * d_);
        for (int64_t i = 0; i < count; i++) {
            Philox random(11, uint64_t(begin + i));
            const float centre = float((begin + i) % 7);
            for (int64_t j = 0; j < d_; j++) {
                x_[i * d_ + j] = centre + float(random.uniform());
            }
        }
        return {count, x_.data(), nullptr};
    }

    int64_t reads = 0;

   private:
    int64_t n_, d_;
    std::vector<float> x_;
};

EMOptions short_fit() {
    EMOptions options;
    options.niter = 2;
    options.init = Initialization::random_rows;
    options.chunk_rows = 20'000;
    return options;
}

/// Streamed rows: ten times as many take no byte more.
TEST(CudaMemory, PeakDoesNotDependOnTheNumberOfStreamedRows) {
    SKIP_WITHOUT_DEVICE();
    constexpr int64_t kD = 24, kK = 30;
    std::vector<int64_t> peaks;
    for (const int64_t n : {40'000, 400'000}) {
        CudaOptions cuda;
        cuda.max_launch_rows = 8192;
        // Room for launches, but for no rows beside what is held free.
        cuda.memory_limit = CudaBackend::device_bytes(8192, kK, kD) + 20 * kMiB;
        CudaBackend backend(cuda);
        GeneratedRows rows(n, kD);
        EMSolver(backend, short_fit()).fit(rows, kK);
        peaks.push_back(backend.peak_device_bytes());
        EXPECT_LE(peaks.back(), cuda.memory_limit);
        // A slot takes no more than an eighth of what is free.
        EXPECT_GE(peaks.back(), CudaBackend::device_bytes(8192, kK, kD) - kMiB);
    }
    EXPECT_EQ(peaks[0], peaks[1]);
}

TEST(CudaMemory, PeakIsAsDocumented) {
    SKIP_WITHOUT_DEVICE();
    for (const int64_t k : {30, 3000}) {
        for (const int64_t d : {17, 256}) {
            const Problem p = Case{"memory", 3000, k, d}.make(3);
            CudaBackend backend;
            statistics_of(backend, p, p.n);
            const int64_t launch = CudaBackend::device_bytes(p.n, k, d);
            const int64_t padded = (d + 31) / 32 * 32;
            const int64_t rows = 3072 * (4 * d + 2 * padded + 8);
            EXPECT_LE(backend.peak_device_bytes(), launch + rows);
            EXPECT_GE(backend.peak_device_bytes(), launch * 95 / 100);
        }
    }
}

/// With room for them, rows are read once: for the check.
TEST(CudaMemory, RowsThatFitAreReadOnce) {
    SKIP_WITHOUT_DEVICE();
    CudaBackend backend;
    GeneratedRows rows(60'000, 24);
    EMOptions options = short_fit();
    EMSolver(backend, options).fit(rows, 30);
    const int64_t reads = rows.reads;
    options.niter = 20;
    rows.reads = 0;
    EMSolver(backend, options).fit(rows, 30);
    EXPECT_EQ(rows.reads, reads);
}

TEST(CudaMemory, SmallLaunchesUnderACapGiveTheSameStatistics) {
    SKIP_WITHOUT_DEVICE();
    const Problem p = Case{"cap", 50'000, 200, 64, 4, 4, true}.make(4);
    CudaBackend roomy;
    const SufficientStats expected = statistics_of(roomy, p, p.n);
    for (const int64_t rows : {128, 1000, 20'000}) {
        CudaOptions cuda;
        cuda.memory_limit = CudaBackend::device_bytes(rows, 200, 64) + 4 * kMiB;
        CudaBackend backend(cuda);
        EXPECT_LT(difference(statistics_of(backend, p, p.n), expected), 1e-5);
        EXPECT_LE(backend.peak_device_bytes(), cuda.memory_limit);
    }
}

TEST(CudaMemory, WhatDoesNotFitIsNamedAndLeavesAUsableBackend) {
    SKIP_WITHOUT_DEVICE();
    CudaOptions cuda;
    cuda.memory_limit = 64 * kMiB;
    CudaBackend backend(cuda);
    const Problem large = Case{"large", 300, 20'000, 512}.make(5);
    const Problem small = Case{"small", 2000, 20, 16, 5, 4}.make(5);
    for (int i = 0; i < 2; i++) {
        try {
            statistics_of(backend, large, large.n);
            FAIL() << "no exception";
        } catch (const OutOfMemory& e) {
            EXPECT_GT(e.asked_bytes, e.available_bytes);
            EXPECT_LE(e.available_bytes, uint64_t(cuda.memory_limit));
            EXPECT_NE(std::string(e.what()).find("GPU"), std::string::npos);
        }
        conformance::expect_conforms(
                backend,
                Case{"small", 2000, 20, 16, 5, 4},
                {.log_z = 0x1p-11, .statistics = 0x1p-10, .dropped = 0x1p-16});
    }
}

} // namespace
