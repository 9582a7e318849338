#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <faiss_flashgmm/cpu/ReferenceBackend.h>
#include <faiss_flashgmm/gpu/CudaBackend.h>

#include "conformance/backend_conformance.h"
#include "device.h"

// What an iteration remembers of rows for the next one, and what it does with
// rows that many components share.

namespace {

using namespace faiss_flashgmm;
using conformance::Case;
using conformance::Problem;
using conformance::statistics_of;
using S = SufficientStats;

CudaOptions with_unit(CudaMatrixUnit unit) {
    CudaOptions options;
    options.matrix_unit = unit;
    return options;
}

SufficientStats kept_statistics_of(CudaBackend& backend, const Problem& p) {
    backend.begin(p.conditioning.to_conditioned(p.mixture), p.conditioning);
    const float* weights = p.weights.empty() ? nullptr : p.weights.data();
    backend.add_rows({p.n, p.x.data(), weights, {0, 0}});
    return backend.finish();
}

/// Frobenius error of sums and squared distances, error of the counts as a
/// share of the rows, error of the log-likelihood a row (besides its rounding).
void expect_near(
        const SufficientStats& actual,
        const SufficientStats& expected,
        double statistics,
        double log_likelihood) {
    const auto error = [](auto a, auto b) {
        double difference = 0;
        double size = 0;
        for (size_t i = 0; i < a.size(); i++) {
            difference += (a[i] - b[i]) * (a[i] - b[i]);
            size += b[i] * b[i];
        }
        return std::sqrt(difference / size);
    };
    EXPECT_LT(error(actual.counts(), expected.counts()), statistics);
    EXPECT_LT(error(actual.sums(), expected.sums()), statistics);
    EXPECT_LT(error(actual.squared(), expected.squared()), statistics);
    const double weight = expected.scalar(S::kWeight);
    const double l = expected.scalar(S::kLogLikelihood) / weight;
    EXPECT_NEAR(
            actual.scalar(S::kLogLikelihood) / weight,
            l,
            log_likelihood + 1e-6 * std::abs(l));
    EXPECT_EQ(actual.scalar(S::kWeight), weight);
}

struct Parameters {
    CudaMatrixUnit unit;
    int64_t d;
};

class CudaEStep : public testing::TestWithParam<Parameters> {};

/// Means that move a little, a lot, not at all; one that is not about these
/// rows; and other numbers of components in between.
TEST_P(CudaEStep, KeptRowsRememberNothingWrong) {
    SKIP_WITHOUT_DEVICE();
    const auto [unit, d] = GetParam();
    const Problem p = Case{"kept", 5000, 300, d, 5, 4, true}.make(31);
    Problem fewer = Case{"fewer", 10, 70, d, 5, 4}.make(32);
    CudaBackend keeps(with_unit(unit));
    CudaBackend forgets(with_unit(unit));
    keeps.begin_fit(p.n, p.mixture.k, d);
    std::mt19937 random(33);
    std::normal_distribution<float> normal;
    Mixture mixture = p.mixture;
    const double steps[] = {0, 1e-3, 1e-3, 0.01, 0.1, 1, 3, 1e-3, 0, 1e-3};
    int step = 0;
    for (const double size : steps) {
        SCOPED_TRACE(step);
        for (float& v : mixture.means) {
            v += float(size) * normal(random);
        }
        for (double& v : mixture.variances) {
            v *= std::exp(0.1 * size * normal(random));
        }
        Problem now = p;
        now.mixture = mixture;
        if (step == 7) {
            now.mixture = fewer.mixture;
        }
        const SufficientStats kept = kept_statistics_of(keeps, now);
        const SufficientStats fresh = statistics_of(forgets, now, p.n);
        expect_near(kept, fresh, 1e-4, 1e-3);
        EXPECT_EQ(keeps.dense_rows(), forgets.dense_rows());
        step++;
    }
}

/// All of them near the largest: no kernel may give up exactness.
TEST_P(CudaEStep, DiffuseRowsAgreeWithFp64) {
    SKIP_WITHOUT_DEVICE();
    const auto [unit, d] = GetParam();
    for (const double separation : {0.5, 1.5, 3.0}) {
        SCOPED_TRACE(separation);
        const Problem p = Case{"diffuse", 1500, 400, d, separation}.make(34);
        CudaBackend backend(with_unit(unit));
        ReferenceBackend reference;
        backend.begin_fit(p.n, p.mixture.k, d);
        const SufficientStats expected = statistics_of(reference, p, p.n);
        for (int i = 0; i < 3; i++) { // its first is without seeds
            const SufficientStats actual = kept_statistics_of(backend, p);
            expect_near(actual, expected, 1e-3, 2e-3);
        }
    }
}

/// Thousands of components for each row.
TEST_P(CudaEStep, CrowdedRowsStayOnTheTensorCores) {
    SKIP_WITHOUT_DEVICE();
    const auto [unit, d] = GetParam();
    const Problem p = Case{"crowded", 1500, 3000, d, 0.2}.make(35);
    CudaBackend backend(with_unit(unit));
    ReferenceBackend reference;
    expect_near(
            statistics_of(backend, p, p.n),
            statistics_of(reference, p, p.n),
            1e-3,
            2e-3);
    EXPECT_EQ(backend.dense_rows(), 0);
}

INSTANTIATE_TEST_SUITE_P(
        Units,
        CudaEStep,
        testing::Values(
                Parameters{CudaMatrixUnit::automatic, 20},
                Parameters{CudaMatrixUnit::automatic, 96},
                Parameters{CudaMatrixUnit::automatic, 128},
                Parameters{CudaMatrixUnit::automatic, 600},
                Parameters{CudaMatrixUnit::mma, 20},
                Parameters{CudaMatrixUnit::mma, 128},
                Parameters{CudaMatrixUnit::mma, 300}));

class CudaMma : public testing::TestWithParam<Case> {};

TEST_P(CudaMma, Fp16AgreesWithFp64) {
    SKIP_WITHOUT_DEVICE();
    CudaBackend backend(with_unit(CudaMatrixUnit::mma));
    conformance::expect_conforms(
            backend,
            GetParam(),
            {.log_z = 0x1p-11, .statistics = 0x1p-10, .dropped = 0x1p-16});
}

TEST_P(CudaMma, Fp32AgreesWithFp64) {
    SKIP_WITHOUT_DEVICE();
    CudaOptions options = with_unit(CudaMatrixUnit::mma);
    options.precision = CudaPrecision::fp32;
    options.min_responsibility = 0x1p-22;
    CudaBackend backend(options);
    conformance::expect_conforms(
            backend,
            GetParam(),
            {.log_z = 2e-6, .statistics = 5e-6, .dropped = 0x1p-20});
}

INSTANTIATE_TEST_SUITE_P(
        Cases,
        CudaMma,
        testing::ValuesIn(conformance::cases()),
        [](const auto& info) { return info.param.name; });

} // namespace
