#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include <faiss_flashgmm/em/EMSolver.h>
#include <faiss_flashgmm/em/MStep.h>
#include <faiss_flashgmm/gpu/CudaBackend.h>

#include "conformance/backend_conformance.h"
#include "device.h"

namespace {

using namespace faiss_flashgmm;
using conformance::Case;
using conformance::Problem;
using conformance::statistics_of;
using S = SufficientStats;

CudaOptions deterministic() {
    CudaOptions options;
    options.deterministic = true;
    return options;
}

std::vector<EMOptions> all_models() {
    std::vector<EMOptions> models;
    for (const VarianceModel variance :
         {VarianceModel::per_component, VarianceModel::tied}) {
        for (const WeightModel weights :
             {WeightModel::free, WeightModel::uniform}) {
            for (const MeanConstraint constraint :
                 {MeanConstraint::none,
                  MeanConstraint::unit,
                  MeanConstraint::integer}) {
                for (const int64_t frozen : {0, 3}) {
                    EMOptions options;
                    options.variance = variance;
                    options.weights = weights;
                    options.constraint = constraint;
                    options.frozen_means = frozen;
                    models.push_back(options);
                }
            }
        }
    }
    return models;
}

/// Two iterations, so that the second begins where the device left off.
TEST(CudaBackend, MaximizesAsTheHostDoes) {
    SKIP_WITHOUT_DEVICE();
    const Problem p = Case{"m_step", 5000, 40, 37, 4, 4, true}.make(5);
    for (EMOptions options : all_models()) {
        options.variance_floor = 0.01;
        CudaBackend host(deterministic());
        CudaBackend device(deterministic());
        Mixture mixture = p.conditioning.to_conditioned(p.mixture);
        device.begin(mixture, p.conditioning);
        for (int iteration = 0; iteration < 2; iteration++) {
            host.begin(mixture, p.conditioning);
            host.accumulate(p.n, p.x.data(), p.weights.data());
            const SufficientStats& stats = host.finish();
            const MStepReport expected = maximize(
                    stats, options, p.conditioning, /*seed=*/1, mixture);

            device.accumulate(p.n, p.x.data(), p.weights.data());
            Backend::Sums sums;
            MStepReport report;
            ASSERT_TRUE(device.advance(options, sums, report));
            Mixture actual;
            device.read_mixture(actual);
            EXPECT_EQ(actual.means.size(), mixture.means.size());
            for (size_t i = 0; i < mixture.means.size(); i++) {
                ASSERT_NEAR(
                        actual.means[i],
                        mixture.means[i],
                        1e-6 * (1 + std::abs(mixture.means[i])));
            }
            for (int64_t c = 0; c < mixture.k; c++) {
                ASSERT_NEAR(
                        actual.variances[c],
                        mixture.variances[c],
                        1e-6 * mixture.variances[c]);
                ASSERT_NEAR(
                        actual.weights[c],
                        mixture.weights[c],
                        1e-6 * mixture.weights[c]);
            }
            EXPECT_NEAR(report.moved_mass, expected.moved_mass, 1e-6);
            EXPECT_NEAR(report.imbalance, expected.imbalance, 1e-6);
            EXPECT_EQ(report.at_floor, expected.at_floor);
            EXPECT_EQ(report.empty, 0);
            for (size_t i = 0; i < sums.size(); i++) {
                const double value = stats.scalar(S::Scalar(i));
                EXPECT_NEAR(sums[i], value, 1e-5 * (1e-9 + std::abs(value)))
                        << "scalar " << i;
            }
        }
    }
}

TEST(CudaBackend, LeavesEmptyComponentsToTheHost) {
    SKIP_WITHOUT_DEVICE();
    Problem p = Case{"empty", 2000, 20, 16, 6, 4}.make(6);
    for (int64_t j = 0; j < 16; j++) {
        p.mixture.mean(7)[j] += 1000; // far from every row
    }
    CudaBackend backend(deterministic());
    const SufficientStats expected = statistics_of(backend, p, p.n);
    const Mixture mixture = p.conditioning.to_conditioned(p.mixture);
    backend.begin(mixture, p.conditioning);
    backend.accumulate(p.n, p.x.data(), nullptr);
    Backend::Sums sums;
    MStepReport report;
    EXPECT_FALSE(backend.advance({}, sums, report));
    EXPECT_EQ(difference(backend.finish(), expected), 0);
    Mixture kept;
    backend.read_mixture(kept);
    EXPECT_EQ(kept.means, mixture.means);
    EXPECT_EQ(kept.weights, mixture.weights);

    // A fit from there moves it, and ends where fits end.
    EMOptions options;
    options.niter = 10;
    MemoryRows rows(p.n, 16, p.x.data());
    const EMResult result =
            EMSolver(backend, options).fit(rows, 20, &p.mixture);
    EXPECT_EQ(result.iterations[0].revived, 1);
    EXPECT_EQ(result.iterations.back().empty, 0);
}

} // namespace
