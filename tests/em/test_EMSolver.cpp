#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include <faiss_flashgmm/cpu/ReferenceBackend.h>

#include "fits.h"

namespace {

using namespace faiss_flashgmm;

// ------------------------------------------------------------ the likelihood

struct Model {
    VarianceModel variance;
    WeightModel weights;
    MeanConstraint constraint;
};

class Likelihood : public testing::TestWithParam<Model> {};

TEST_P(Likelihood, NeverFalls) {
    EMOptions options;
    options.niter = 60;
    options.variance = GetParam().variance;
    options.weights = GetParam().weights;
    options.constraint = GetParam().constraint;
    options.init = Initialization::random_rows;
    for (const int64_t d : {2, 20}) {
        for (uint64_t seed = 1; seed <= 3; seed++) {
            options.seed = seed;
            const EMResult result =
                    fit(make_blobs(600, d, 9, 0.8, seed), d, 12, options);
            expect_valid(result);
            ASSERT_EQ(result.iterations.size(), 60);
            int gains = 0;
            for (size_t i = 1; i < result.iterations.size(); i++) {
                const IterationStats& before = result.iterations[i - 1];
                const double gain = result.iterations[i].log_likelihood -
                        before.log_likelihood;
                if (before.revived == 0) {
                    EXPECT_GE(gain, -1e-6) << "iteration " << i;
                }
                gains += gain > 1e-4;
            }
            EXPECT_GE(gains, 5);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
        Models,
        Likelihood,
        testing::Values(
                Model{VarianceModel::per_component,
                      WeightModel::free,
                      MeanConstraint::none},
                Model{VarianceModel::per_component,
                      WeightModel::uniform,
                      MeanConstraint::none},
                Model{VarianceModel::tied,
                      WeightModel::free,
                      MeanConstraint::none},
                Model{VarianceModel::tied,
                      WeightModel::uniform,
                      MeanConstraint::none},
                Model{VarianceModel::per_component,
                      WeightModel::free,
                      MeanConstraint::unit},
                Model{VarianceModel::tied,
                      WeightModel::uniform,
                      MeanConstraint::unit}));

TEST(EMSolver, AgreesWithTheFp64BackendAlongTheWholeFit) {
    const int64_t d = 11;
    const std::vector<float> x = make_blobs(900, d, 8, 1.0);
    EMOptions options;
    options.niter = 15;
    MemoryRows rows(900, d, x.data());
    CpuBackend cpu;
    ReferenceBackend reference;
    const EMResult a = EMSolver(cpu, options).fit(rows, 10);
    const EMResult b = EMSolver(reference, options).fit(rows, 10);
    for (size_t i = 0; i < a.iterations.size(); i++) {
        EXPECT_NEAR(
                a.iterations[i].log_likelihood,
                b.iterations[i].log_likelihood,
                1e-5);
    }
    EXPECT_LT(difference(a.mixture, b.mixture), 1e-4);
}

TEST(EMSolver, OneComponentIsTheClosedForm) {
    const int64_t n = 100, d = 4;
    const std::vector<float> x = make_blobs(n, d, 3, 2);
    EMOptions options;
    options.niter = 2;
    const EMResult result = fit(x, d, 1, options);
    double variance = 0;
    for (int64_t j = 0; j < d; j++) {
        double mean = 0;
        for (int64_t i = 0; i < n; i++) {
            mean += x[i * d + j] / double(n);
        }
        EXPECT_NEAR(result.mixture.mean(0)[j], mean, 1e-5);
        for (int64_t i = 0; i < n; i++) {
            variance += (x[i * d + j] - mean) * (x[i * d + j] - mean) /
                    double(n * d);
        }
    }
    EXPECT_NEAR(result.mixture.variances[0], variance, 1e-5 * variance);
    EXPECT_EQ(result.mixture.weights[0], 1);
    // The likelihood of the closed form, about its own mean.
    EXPECT_NEAR(
            result.iterations[1].log_likelihood,
            -0.5 * double(d) * (std::log(2 * M_PI * variance) + 1),
            1e-5);
}

// --------------------------------------------------------------- invariances

TEST(EMSolver, OrderOfRowsDoesNotMatter) {
    const int64_t n = 500, d = 6, k = 7;
    const std::vector<float> x = make_blobs(n, d, k, 1.5);
    Mixture start(k, d);
    start.means = given_start(x, d, k).means;
    std::vector<int64_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(3);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<float> y(n * d);
    for (int64_t i = 0; i < n; i++) {
        std::copy_n(x.begin() + order[i] * d, d, y.begin() + i * d);
    }
    // Few iterations: EM magnifies how sums round where it converges slowly.
    EMOptions options;
    options.niter = 3;
    const EMResult a = fit(x, d, k, options, &start);
    const EMResult b = fit(y, d, k, options, &start);
    EXPECT_LT(difference(a.mixture, b.mixture), 1e-6);
}

TEST(EMSolver, IntegerWeightsAreRepeatedRows) {
    const int64_t n = 300, d = 5, k = 6;
    const std::vector<float> x = make_blobs(n, d, k, 1.5);
    Mixture start(k, d);
    start.means = given_start(x, d, k).means;
    EMOptions options;
    options.niter = 3;
    std::vector<float> w(n), y;
    for (int64_t i = 0; i < n; i++) {
        w[i] = float(i % 4); // 0 too
        for (int r = 0; r < i % 4; r++) {
            y.insert(y.end(), x.begin() + i * d, x.begin() + (i + 1) * d);
        }
    }
    const EMResult a = fit(x, d, k, options, &start, w.data());
    const EMResult b = fit(y, d, k, options, &start);
    EXPECT_LT(difference(a.mixture, b.mixture), 1e-6);
    EXPECT_NEAR(
            a.iterations.back().objective / b.iterations.back().objective,
            1,
            1e-6);
}

TEST(EMSolver, ScaleOfWeightsDoesNotMatter) {
    const int64_t n = 400, d = 5, k = 6;
    const std::vector<float> x = make_blobs(n, d, k, 1.5);
    std::vector<float> w(n), scaled(n);
    for (int64_t i = 0; i < n; i++) {
        w[i] = 0.5f + float(i % 3);
        scaled[i] = w[i] * 0x1p-40f;
    }
    const EMResult a = fit(x, d, k, {}, nullptr, w.data());
    const EMResult b = fit(x, d, k, {}, nullptr, scaled.data());
    EXPECT_LT(difference(a.mixture, b.mixture), 1e-9);
    EXPECT_NEAR(
            a.iterations.back().log_likelihood,
            b.iterations.back().log_likelihood,
            1e-9);
}

TEST(EMSolver, CommonOffsetAndScaleDoNotMatter) {
    const int64_t n = 1000, d = 8, k = 10;
    // Multiples of 1/8, so that the offset itself rounds nothing.
    std::vector<float> x = make_blobs(n, d, k, 20);
    for (float& v : x) {
        v = std::round(v * 8) / 8;
    }
    const EMResult plain = fit(x, d, k, {});
    const std::vector<int64_t> expected = partition(plain, x, d);
    EXPECT_GE(plain.distinct_means, k);

    std::vector<float> shifted(x), tiny(x), huge(x);
    for (size_t i = 0; i < x.size(); i++) {
        shifted[i] = x[i] + 1e6f;
        tiny[i] = x[i] * 0x1p-83f; // about 1e-25
        huge[i] = x[i] * 0x1p60f;
    }
    EXPECT_EQ(partition(fit(shifted, d, k, {}), shifted, d), expected);
    for (const auto& [scaled, factor] :
         {std::pair(&tiny, 0x1p-83), std::pair(&huge, 0x1p60)}) {
        const EMResult result = fit(*scaled, d, k, {});
        EXPECT_EQ(partition(result, *scaled, d), expected);
        EXPECT_NEAR(
                result.iterations.back().log_likelihood,
                plain.iterations.back().log_likelihood -
                        double(d) * std::log(factor),
                1e-6);
        EXPECT_NEAR(
                result.mixture.variances[0] / (factor * factor) /
                        plain.mixture.variances[0],
                1,
                1e-9);
    }
}

TEST(EMSolver, ThreadsAndChunksDoNotMatterBitForBit) {
    const int64_t n = 3000, d = 19, k = 33;
    const std::vector<float> x = make_blobs(n, d, k, 1.0);
    const int threads = omp_get_max_threads();
    EMOptions options;
    options.niter = 8;
    omp_set_num_threads(1);
    const EMResult expected = fit(x, d, k, options);
    for (const int t : {1, 2, 3}) {
        for (const int64_t chunk : {0, 100, 777}) {
            omp_set_num_threads(t);
            options.chunk_rows = chunk;
            const EMResult result = fit(x, d, k, options);
            EXPECT_EQ(result.mixture.means, expected.mixture.means);
            EXPECT_EQ(result.mixture.variances, expected.mixture.variances);
            EXPECT_EQ(result.mixture.weights, expected.mixture.weights);
            for (size_t i = 0; i < result.iterations.size(); i++) {
                EXPECT_EQ(
                        result.iterations[i].log_likelihood,
                        expected.iterations[i].log_likelihood);
            }
        }
    }
    omp_set_num_threads(threads);
}

// ------------------------------------------------------------------- restarts

TEST(EMSolver, WarmStartIsNoWorseThanTheFitItContinues) {
    const std::vector<float> x = make_blobs(800, 6, 9, 1.2);
    EMOptions options;
    options.niter = 5;
    const EMResult cold = fit(x, 6, 9, options);
    const EMResult warm = fit(x, 6, 9, options, &cold.mixture);
    EXPECT_GE(
            warm.iterations.front().log_likelihood,
            cold.iterations.back().log_likelihood - 1e-6);
}

TEST(EMSolver, FewerGivenMeansComeFirst) {
    const std::vector<float> x = make_blobs(800, 6, 9, 30);
    EMOptions options;
    options.niter = 0;
    const Mixture start = given_start(x, 6, 4);
    for (const Initialization init :
         {Initialization::random_rows,
          Initialization::kmeans_pp,
          Initialization::lloyd}) {
        options.init = init;
        const EMResult result = fit(x, 6, 9, options, &start);
        EXPECT_TRUE(result.iterations.empty());
        for (int64_t i = 0; i < 4 * 6; i++) {
            EXPECT_NEAR(result.mixture.means[i], start.means[i], 1e-4);
        }
        EXPECT_EQ(result.distinct_means, 9);
    }
}

TEST(EMSolver, FrozenMeansComeBackBitForBit) {
    const std::vector<float> x = make_blobs(800, 6, 9, 2);
    EMOptions options;
    options.frozen_means = 4;
    const Mixture start = given_start(x, 6, 4);
    const EMResult result = fit(x, 6, 9, options, &start);
    expect_valid(result);
    EXPECT_TRUE(std::equal(
            start.means.begin(),
            start.means.end(),
            result.mixture.means.begin()));
    options.frozen_means = 9;
    const Mixture all = given_start(x, 6, 9);
    EXPECT_EQ(fit(x, 6, 9, options, &all).mixture.means, all.means);
}

TEST(EMSolver, RedoKeepsTheRunOfHighestLikelihood) {
    const std::vector<float> x = make_blobs(500, 4, 12, 3);
    EMOptions options;
    options.niter = 6;
    options.nredo = 4;
    options.init = Initialization::random_rows;
    const EMResult result = fit(x, 4, 12, options);
    ASSERT_EQ(result.iterations.size(), 24);
    int best = 0;
    for (int redo = 1; redo < 4; redo++) {
        if (result.iterations[redo * 6 + 5].log_likelihood >
            result.iterations[best * 6 + 5].log_likelihood) {
            best = redo;
        }
    }
    EXPECT_EQ(result.best_redo, best);
    options.nredo = 1;
    options.seed += uint64_t(best);
    EXPECT_EQ(fit(x, 4, 12, options).mixture.means, result.mixture.means);
}

TEST(EMSolver, ToleranceStopsAndIsReported) {
    const std::vector<float> x = make_blobs(500, 4, 5, 20);
    EMOptions options;
    options.niter = 100;
    options.tol = 1e-7;
    const EMResult result = fit(x, 4, 5, options);
    EXPECT_TRUE(result.converged);
    EXPECT_LT(result.iterations.size(), 50);
    options.tol = 0;
    options.niter = 7;
    const EMResult all = fit(x, 4, 5, options);
    EXPECT_FALSE(all.converged);
    EXPECT_EQ(all.iterations.size(), 7);
}

TEST(EMSolver, SamplesRowsByIndex) {
    const std::vector<float> x = make_blobs(2000, 4, 5, 20);
    EMOptions options;
    options.max_rows_per_component = 60;
    const EMResult result = fit(x, 4, 5, options);
    EXPECT_EQ(result.rows_used, 300);
    options.max_rows_per_component = 400;
    EXPECT_EQ(fit(x, 4, 5, options).rows_used, 2000);
}

// ------------------------------------------------------------------- progress

TEST(EMSolver, ReportsProgressOfEveryChunk) {
    const std::vector<float> x = make_blobs(1000, 4, 3, 2);
    EMOptions options;
    options.niter = 4;
    options.nredo = 2;
    options.chunk_rows = 300;
    std::vector<Progress> seen;
    options.progress = [&](const Progress& p) { seen.push_back(p); };
    fit(x, 4, 3, options);
    EXPECT_EQ(seen.front().stage, Progress::Stage::check_rows);
    EXPECT_EQ(seen.back().stage, Progress::Stage::em);
    EXPECT_EQ(seen.back().iteration, 3);
    EXPECT_EQ(seen.back().redo, 1);
    EXPECT_EQ(seen.back().rows_done, 1000);
    EXPECT_NEAR(seen.back().eta_seconds, 0, 1e-9);
    int chunks = 0;
    for (const Progress& p : seen) {
        chunks += p.stage == Progress::Stage::em && p.rows_done > 0;
        if (p.rows_done > 0) {
            EXPECT_GE(p.eta_seconds, 0);
        }
    }
    EXPECT_EQ(chunks, 2 * 4 * 4);
}

TEST(EMSolver, ReportsEachIterationAsItEnds) {
    const std::vector<float> x = make_blobs(1000, 4, 3, 2);
    EMOptions options;
    options.niter = 4;
    options.nredo = 2;
    std::vector<IterationStats> seen;
    options.on_iteration = [&](const IterationStats& s) { seen.push_back(s); };
    const EMResult result = fit(x, 4, 3, options);
    ASSERT_EQ(seen.size(), 8);
    for (size_t i = 0; i < seen.size(); i++) {
        EXPECT_EQ(seen[i].iteration, int(i % 4));
        EXPECT_EQ(seen[i].redo, int(i / 4));
        EXPECT_EQ(seen[i].log_likelihood, result.iterations[i].log_likelihood);
    }
}

TEST(EMSolver, SeedingReportsProgressToo) {
    const std::vector<float> x = make_blobs(1000, 4, 3, 2);
    EMOptions options;
    options.init = Initialization::kmeans_pp;
    int calls = 0;
    options.progress = [&](const Progress& p) {
        if (p.stage == Progress::Stage::initialize && ++calls == 5) {
            EXPECT_EQ(p.rows_done, 1000 * 5 / 30);
            throw Interrupted("enough");
        }
    };
    EXPECT_THROW(fit(x, 4, 30, options), Interrupted);
    EXPECT_EQ(calls, 5);
}

TEST(EMSolver, CanBeInterruptedAndUsedAgain) {
    const std::vector<float> x = make_blobs(1000, 4, 3, 2);
    MemoryRows rows(1000, 4, x.data());
    CpuBackend backend;
    bool stop = true;
    EMOptions options;
    options.progress = [&](const Progress& p) {
        if (stop && p.stage == Progress::Stage::em && p.iteration == 2) {
            throw Interrupted("enough");
        }
    };
    EMSolver solver(backend, options);
    EXPECT_THROW(solver.fit(rows, 3), Interrupted);
    stop = false;
    const EMResult again = solver.fit(rows, 3);
    EXPECT_EQ(again.mixture.means, fit(x, 4, 3, {}).mixture.means);
}

} // namespace
