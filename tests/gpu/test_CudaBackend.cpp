#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <faiss_flashgmm/cpu/ReferenceBackend.h>
#include <faiss_flashgmm/em/EMSolver.h>
#include <faiss_flashgmm/gpu/CudaBackend.h>
#include <faiss_flashgmm/utils/Error.h>

#include "conformance/backend_conformance.h"
#include "device.h"

namespace {

using namespace faiss_flashgmm;
using conformance::Case;
using conformance::Problem;
using conformance::statistics_of;
using S = SufficientStats;

CudaOptions with_precision(CudaPrecision precision) {
    CudaOptions options;
    options.precision = precision;
    return options;
}

class CudaConformance : public testing::TestWithParam<Case> {};

TEST_P(CudaConformance, ReferenceAgreesWithFp64) {
    SKIP_WITHOUT_DEVICE();
    CudaBackend backend(with_precision(CudaPrecision::reference));
    conformance::expect_conforms(
            backend,
            GetParam(),
            {.log_z = 2e-6, .statistics = 5e-6, .dropped = 0x1p-16});
}

TEST_P(CudaConformance, Fp32AgreesWithFp64) {
    SKIP_WITHOUT_DEVICE();
    CudaOptions options = with_precision(CudaPrecision::fp32);
    options.min_responsibility = 0x1p-22;
    CudaBackend backend(options);
    conformance::expect_conforms(
            backend,
            GetParam(),
            {.log_z = 2e-6, .statistics = 5e-6, .dropped = 0x1p-20});
}

TEST_P(CudaConformance, Fp16AgreesWithFp64) {
    SKIP_WITHOUT_DEVICE();
    CudaBackend backend;
    conformance::expect_conforms(
            backend,
            GetParam(),
            {.log_z = 0x1p-11, .statistics = 0x1p-10, .dropped = 0x1p-16});
}

TEST_P(CudaConformance, ChunksDoNotMatter) {
    SKIP_WITHOUT_DEVICE();
    // fp32: a chunk decides which rows take the dense way.
    const Problem p = GetParam().make(/*seed=*/18);
    CudaOptions options = with_precision(CudaPrecision::fp32);
    options.min_responsibility = 0x1p-22;
    CudaBackend backend(options);
    const SufficientStats whole = statistics_of(backend, p, p.n);
    for (const int64_t chunk : {7, 64, 1000}) {
        EXPECT_LT(difference(statistics_of(backend, p, chunk), whole), 2e-5)
                << "chunk " << chunk;
    }
}

INSTANTIATE_TEST_SUITE_P(
        Cases,
        CudaConformance,
        testing::ValuesIn(conformance::cases()),
        [](const auto& info) { return info.param.name; });

/// Large enough for several blocks a multiprocessor and many segments.
const Case kLarge{"large", 70'001, 600, 96, 5, 4, true};

/// The statistics of rows that are read once: later chunks are but keys.
SufficientStats kept_statistics_of(CudaBackend& backend, const Problem& p) {
    backend.begin(p.conditioning.to_conditioned(p.mixture), p.conditioning);
    for (int64_t begin = 0; begin < p.n; begin += 30'000) {
        Rows rows;
        rows.n = std::min<int64_t>(30'000, p.n - begin);
        rows.key = {0, begin};
        if (!backend.has_rows(rows.key)) {
            rows.x = p.x.data() + begin * p.mixture.d;
            rows.weights = p.weights.empty() ? nullptr : &p.weights[begin];
        }
        backend.add_rows(rows);
        EXPECT_TRUE(backend.has_rows(rows.key));
    }
    return backend.finish();
}

TEST(CudaBackend, ManyRowTilesAgreeWithFp64) {
    SKIP_WITHOUT_DEVICE();
    const Case c{"tiles", 20'011, 300, 96, 5, 4, true};
    CudaBackend backend;
    conformance::expect_conforms(
            backend,
            c,
            {.log_z = 0x1p-11, .statistics = 0x1p-10, .dropped = 0x1p-16});
    EXPECT_LT(backend.dense_rows(), c.n / 10);
}

TEST(CudaBackend, DeterministicRunsAreBitEqual) {
    SKIP_WITHOUT_DEVICE();
    const Problem p = kLarge.make(3);
    CudaOptions options;
    options.deterministic = true;
    std::vector<SufficientStats> runs;
    for (int i = 0; i < 3; i++) {
        CudaBackend backend(options);
        runs.push_back(statistics_of(backend, p, p.n));
    }
    for (int i = 1; i < 3; i++) {
        EXPECT_TRUE(std::ranges::equal(runs[0].flat(), runs[i].flat()))
                << "run " << i;
    }
    CudaBackend fast;
    EXPECT_LT(difference(statistics_of(fast, p, p.n), runs[0]), 1e-6);
}

TEST(CudaBackend, RowTypesDoNotMatter) {
    SKIP_WITHOUT_DEVICE();
    for (const CudaPrecision precision :
         {CudaPrecision::fp16, CudaPrecision::fp32, CudaPrecision::reference}) {
        CudaBackend backend(with_precision(precision));
        conformance::expect_row_types_do_not_matter(backend, 1e-5);
    }
}

TEST(CudaBackend, RowsMayBeOnTheDevice) {
    SKIP_WITHOUT_DEVICE();
    const Problem p = kLarge.make(4);
    CudaBackend backend;
    const SufficientStats from_host = statistics_of(backend, p, p.n);

    const gpu::DeviceBuffer<float> x = on_device(p.x);
    const gpu::DeviceBuffer<float> weights = on_device(p.weights);
    backend.begin(p.conditioning.to_conditioned(p.mixture), p.conditioning);
    backend.accumulate(p.n, x.get(), weights.get());
    EXPECT_LT(difference(backend.finish(), from_host), 1e-6);

    backend.begin_fit(p.n, p.mixture.k, p.mixture.d);
    for (int i = 0; i < 2; i++) {
        backend.begin(p.conditioning.to_conditioned(p.mixture), p.conditioning);
        backend.add_rows({p.n, x.get(), weights.get(), {0, 0}});
        EXPECT_LT(difference(backend.finish(), from_host), 1e-6);
    }
    EXPECT_TRUE(backend.has_rows({0, 0}));

    backend.begin(p.conditioning.to_conditioned(p.mixture), p.conditioning);
    EXPECT_THROW(backend.accumulate(p.n, x.get(), p.weights.data()), Error);
}

TEST(CudaBackend, KeptRowsGiveTheSameStatistics) {
    SKIP_WITHOUT_DEVICE();
    Problem p = kLarge.make(5);
    CudaBackend backend;
    const SufficientStats copied = statistics_of(backend, p, p.n);
    backend.begin_fit(p.n, p.mixture.k, p.mixture.d);
    for (int i = 0; i < 3; i++) {
        EXPECT_LT(difference(kept_statistics_of(backend, p), copied), 1e-5);
    }
    // Other units: the fp16 form of what was kept is of no use.
    p.conditioning = Conditioning::identity(p.mixture.d);
    const SufficientStats identity = kept_statistics_of(backend, p);
    backend.forget_rows(0);
    EXPECT_FALSE(backend.has_rows({0, 0}));
    CudaBackend fresh;
    EXPECT_LT(difference(identity, statistics_of(fresh, p, 30'000)), 1e-5);
}

/// Components of a tiny variance make logits so large that rounding them costs
/// many bits; rows that were theirs an iteration ago must not get lost.
TEST(CudaBackend, TinyVariancesKeepAllRows) {
    SKIP_WITHOUT_DEVICE();
    for (const int64_t d : {24, 256, 600}) {
        Problem p = Case{"tiny", 20'000, 300, d, 6, 4}.make(10);
        CudaBackend backend;
        backend.begin_fit(p.n, 300, d);
        for (int i = 0; i < 4; i++) {
            for (int64_t c = i; c < 300; c += 7) {
                p.mixture.variances[c] *= 1e-3;
            }
            const SufficientStats stats = kept_statistics_of(backend, p);
            double total = 0;
            for (const double count : stats.counts()) {
                total += count;
            }
            EXPECT_NEAR(total, double(p.n), 1e-6 * double(p.n));
            EXPECT_EQ(stats.scalar(S::kWeight), double(p.n));
        }
    }
}

TEST(CudaBackend, SmallLaunchesGiveTheSameStatistics) {
    SKIP_WITHOUT_DEVICE();
    const Problem p = kLarge.make(6);
    CudaBackend backend;
    CudaOptions options;
    options.max_launch_rows = 1000;
    CudaBackend small(options);
    EXPECT_LT(
            difference(
                    statistics_of(small, p, p.n),
                    statistics_of(backend, p, p.n)),
            1e-5);
}

/// More responsible components a row than a launch has room for.
TEST(CudaBackend, StartsOverWhenPairsDoNotFit) {
    SKIP_WITHOUT_DEVICE();
    const Case c{"many_pairs", 6000, 80, 16, 0.5, 1.5};
    CudaBackend backend;
    conformance::expect_conforms(
            backend,
            c,
            {.log_z = 0x1p-11, .statistics = 0x1p-10, .dropped = 0x1p-16});
    EXPECT_EQ(backend.dense_rows(), 0);
}

TEST(CudaBackend, RowOutsideFp16TakesTheDenseWay) {
    SKIP_WITHOUT_DEVICE();
    Problem p = Case{"outlier", 1000, 50, 24}.make(7);
    p.x[500 * 24 + 3] = 1e9f;
    CudaBackend backend;
    ReferenceBackend reference;
    const SufficientStats actual = statistics_of(backend, p, p.n);
    const SufficientStats expected = statistics_of(reference, p, p.n);
    EXPECT_EQ(backend.dense_rows(), 1);
    EXPECT_LT(difference(actual, expected), 1e-3);
}

TEST(CudaBackend, LikelihoodNeverFalls) {
    SKIP_WITHOUT_DEVICE();
    const Problem p = Case{"fit", 20'000, 50, 20, 3, 4}.make(8);
    for (const CudaPrecision precision :
         {CudaPrecision::fp16, CudaPrecision::fp32}) {
        CudaBackend backend(with_precision(precision));
        EMOptions options;
        options.niter = 30;
        MemoryRows rows(p.n, p.mixture.d, p.x.data());
        const EMResult result = EMSolver(backend, options).fit(rows, 50);
        const auto& stats = result.iterations;
        for (size_t i = 1; i < stats.size(); i++) {
            if (stats[i - 1].revived == 0) {
                EXPECT_GT(
                        stats[i].log_likelihood,
                        stats[i - 1].log_likelihood - 1e-5)
                        << "iteration " << i;
            }
        }
    }
}

TEST(CudaBackend, ReachesTheLikelihoodOfFp64) {
    SKIP_WITHOUT_DEVICE();
    const Problem p = Case{"fit", 4000, 30, 16, 4, 4}.make(9);
    EMOptions options;
    options.niter = 20;
    MemoryRows rows(p.n, p.mixture.d, p.x.data());
    CudaBackend backend;
    ReferenceBackend reference;
    const EMResult a =
            EMSolver(backend, options).fit(rows, p.mixture.k, &p.mixture);
    const EMResult b =
            EMSolver(reference, options).fit(rows, p.mixture.k, &p.mixture);
    EXPECT_NEAR(
            a.iterations.back().log_likelihood,
            b.iterations.back().log_likelihood,
            1e-3);
}

TEST(CudaBackend, NamesAMissingDevice) {
    CudaOptions options;
    options.devices = {1000};
    try {
        CudaBackend backend(options);
        FAIL() << "no exception";
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("CUDA"), std::string::npos);
    }
}

} // namespace
