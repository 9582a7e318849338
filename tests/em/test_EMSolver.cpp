#include <omp.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>

#include <faiss_flashgmm/cpu/CpuBackend.h>
#include <faiss_flashgmm/cpu/ReferenceBackend.h>
#include <faiss_flashgmm/em/EMSolver.h>
#include <faiss_flashgmm/utils/Error.h>

#include "blobs.h"

namespace {

using namespace faiss_flashgmm;

EMResult fit(
        const std::vector<float>& x,
        int64_t d,
        int64_t k,
        const EMOptions& options,
        const Mixture* initial = nullptr,
        const float* weights = nullptr) {
    CpuBackend backend;
    MemoryRows rows(int64_t(x.size()) / d, d, x.data(), weights);
    return EMSolver(backend, options).fit(rows, k, initial);
}

std::string message_of(const std::function<void()>& function) {
    try {
        function();
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

/// Largest relative difference of two fits.
double difference(const Mixture& a, const Mixture& b) {
    double largest = 0;
    for (size_t i = 0; i < a.means.size(); i++) {
        largest = std::max(
                largest,
                std::abs(double(a.means[i]) - b.means[i]) /
                        (1 + std::abs(double(a.means[i]))));
    }
    for (int64_t c = 0; c < a.k; c++) {
        largest = std::max(
                {largest,
                 std::abs(a.variances[c] / b.variances[c] - 1),
                 std::abs(a.weights[c] - b.weights[c])});
    }
    return largest;
}

void expect_valid(const EMResult& result) {
    result.mixture.check();
    for (const IterationStats& s : result.iterations) {
        EXPECT_TRUE(std::isfinite(s.log_likelihood));
        EXPECT_TRUE(std::isfinite(s.objective) && s.objective >= 0);
        EXPECT_GE(s.imbalance, 1 - 1e-9);
        EXPECT_GE(s.moved_mass, 0);
        EXPECT_LE(s.moved_mass, 1 + 1e-9);
        EXPECT_GE(s.pairs_per_row, 1 - 1e-9);
    }
}

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

Mixture given_start(const std::vector<float>& x, int64_t d, int64_t k) {
    Mixture m(k, d);
    std::copy_n(x.begin(), k * d, m.means.begin());
    m.variances.clear();
    m.weights.clear();
    return m;
}

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

std::vector<int64_t> partition(
        const EMResult& result,
        const std::vector<float>& x,
        int64_t d) {
    CpuBackend backend;
    const Conditioning& c = result.conditioning;
    backend.begin(c.to_conditioned(result.mixture), c);
    const int64_t n = int64_t(x.size()) / d;
    std::vector<int64_t> ids(n);
    std::vector<float> scores(n);
    backend.assign(n, x.data(), 1, ids.data(), scores.data(), nullptr);
    return ids;
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

// -------------------------------------------------------------- difficult data

TEST(EMSolver, AllRowsAlike) {
    const std::vector<float> x(400, 3.0f);
    const EMResult result = fit(x, 4, 8, {});
    expect_valid(result);
    EXPECT_EQ(result.distinct_means, 1);
    EXPECT_LE(
            result.iterations.back().objective,
            result.iterations.front().objective + 1e-9);
    for (const float m : result.mixture.means) {
        EXPECT_EQ(m, 3.0f);
    }
}

TEST(EMSolver, FewerDistinctRowsThanComponents) {
    std::vector<float> x;
    for (int i = 0; i < 100; i++) {
        x.push_back(float(i % 5));
        x.push_back(float((i % 5) * (i % 5)));
    }
    const EMResult result = fit(x, 2, 10, {});
    expect_valid(result);
    EXPECT_GE(result.distinct_means, 5);
    EXPECT_LT(result.iterations.back().objective, 1e-3);
}

TEST(EMSolver, ClonesOfTwoRows) {
    std::vector<float> x(100 * 3);
    std::fill(x.begin() + 150, x.end(), 1.0f);
    const EMResult result = fit(x, 3, 10, {});
    expect_valid(result);
    const double floor = 1e-6 * 0.25 * 0.99;
    for (const double s : result.mixture.variances) {
        EXPECT_GE(s, floor);
    }
    EXPECT_GT(result.iterations.back().at_floor, 0);
}

TEST(EMSolver, TwoFarRows) {
    const EMResult result = fit({9999, 0}, 1, 2, {});
    expect_valid(result);
    const double low =
            std::min(result.mixture.means[0], result.mixture.means[1]);
    const double high =
            std::max(result.mixture.means[0], result.mixture.means[1]);
    EXPECT_NEAR(low, 0, 1e-2);
    EXPECT_NEAR(high, 9999, 1e-2);
}

TEST(EMSolver, MoreComponentsThanBlobs) {
    const EMResult result = fit(make_blobs(600, 6, 3, 50), 6, 50, {});
    expect_valid(result);
    EXPECT_EQ(result.distinct_means, 50);
}

TEST(EMSolver, ReportsAndRevivesEmptyComponents) {
    const std::vector<float> x = make_blobs(400, 4, 3, 30);
    Mixture start = given_start(x, 4, 12);
    for (int64_t c = 6; c < 12; c++) { // nowhere near a row
        std::fill_n(start.mean(c), 4, 1e5f * float(c));
    }
    const EMResult result = fit(x, 4, 12, {}, &start);
    expect_valid(result);
    EXPECT_GE(result.iterations[0].empty, 6);
    EXPECT_GE(result.iterations[0].revived, 6);
    EXPECT_EQ(result.iterations.back().empty, 0);
    for (const double w : result.mixture.weights) {
        EXPECT_GT(w, 0);
    }
}

TEST(EMSolver, OneExtremeRow) {
    for (const float extreme : {1e18f, 1e25f, 3e38f, -3e38f}) {
        std::vector<float> x = make_blobs(500, 4, 5, 3);
        x[0] = extreme;
        const EMResult result = fit(x, 4, 5, {});
        expect_valid(result);
        const std::vector<int64_t> ids = partition(result, x, 4);
        EXPECT_TRUE(std::all_of(ids.begin(), ids.end(), [](int64_t id) {
            return id >= 0 && id < 5;
        }));
    }
}

TEST(EMSolver, OneDominantColumn) {
    for (const float factor : {1e3f, 1e7f}) {
        std::vector<float> x = make_blobs(500, 5, 5, 3);
        for (size_t i = 3; i < x.size(); i += 5) {
            x[i] *= factor;
        }
        expect_valid(fit(x, 5, 5, {}));
    }
}

TEST(EMSolver, HeavyTailsAreReportedAsImbalance) {
    std::vector<float> x = make_blobs(3000, 4, 30, 2);
    std::mt19937 random(1);
    std::lognormal_distribution<float> norm(0, 2);
    for (size_t i = 0; i < x.size(); i += 4) {
        const float s = norm(random);
        for (int j = 0; j < 4; j++) {
            x[i + j] *= s;
        }
    }
    const EMResult result = fit(x, 4, 60, {});
    expect_valid(result);
    EXPECT_GT(result.iterations.back().imbalance, 1.01);
}

/// Rows made up as they are read.
class SkewedRows : public RowSource {
   public:
    explicit SkewedRows(int64_t n) : n_(n) {}
    int64_t size() const override {
        return n_;
    }
    int64_t dim() const override {
        return 1;
    }
    Rows read(int64_t begin, int64_t count) override {
        x_.resize(count);
        for (int64_t i = 0; i < count; i++) {
            const int64_t row = begin + i;
            x_[i] = (row % 20 ? 0.0f : 10.0f) + float(row % 7) * 0.1f;
        }
        return {count, x_.data(), nullptr};
    }

   private:
    int64_t n_;
    std::vector<float> x_;
};

TEST(EMSolver, CountsPastTheMantissaOfFp32) {
    SkewedRows rows(int64_t(20) << 20); // 95% of it is above 2^24
    CpuBackend backend;
    EMOptions options;
    options.niter = 1;
    const EMResult result = EMSolver(backend, options).fit(rows, 2);
    expect_valid(result);
    const double large =
            std::max(result.mixture.weights[0], result.mixture.weights[1]);
    EXPECT_NEAR(large, 0.95, 1e-6);
    EXPECT_EQ(result.rows_used, rows.size());
}

TEST(EMSolver, ZeroRowsUnderUnitMeans) {
    std::vector<float> x = make_blobs(400, 6, 4, 2);
    std::fill(x.begin(), x.begin() + 1200, 0.0f); // half of the rows
    EMOptions options;
    options.constraint = MeanConstraint::unit;
    const EMResult result = fit(x, 6, 8, options);
    expect_valid(result);
    const std::vector<int64_t> ids = partition(result, x, 6);
    for (int i = 0; i < 200; i++) {
        EXPECT_EQ(ids[i], ids[0]);
    }
}

TEST(EMSolver, ConstrainedMeans) {
    std::vector<float> x = make_blobs(800, 5, 6, 4);
    EMOptions options;
    options.constraint = MeanConstraint::unit;
    EMResult result = fit(x, 5, 12, options);
    for (int64_t c = 0; c < 12; c++) {
        double norm = 0;
        for (int64_t j = 0; j < 5; j++) {
            norm += double(result.mixture.mean(c)[j]) *
                    result.mixture.mean(c)[j];
        }
        EXPECT_NEAR(norm, 1, 1e-5);
    }
    options.constraint = MeanConstraint::integer;
    result = fit(x, 5, 12, options);
    for (const float m : result.mixture.means) {
        EXPECT_EQ(m, std::round(m));
    }
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

// ------------------------------------------------------------------- bad input

TEST(EMSolver, NamesTheBadRow) {
    const std::vector<float> good = make_blobs(1000, 4, 3, 2);
    EMOptions options;
    options.max_rows_per_component = 10; // rows that sampling drops count too
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
        std::vector<float> x = good;
        x[7 * 4 + 2] = bad;
        x[900 * 4] = bad;
        const std::string message = message_of([&] { fit(x, 4, 3, options); });
        EXPECT_TRUE(contains(message, "row 7 ")) << message;
        EXPECT_TRUE(contains(message, "column 2")) << message;
    }
    std::vector<float> w(1000, 1.0f);
    for (const float bad : {NAN, INFINITY, -1.0f}) {
        w[7] = bad;
        const std::string message = message_of(
                [&] { fit(good, 4, 3, options, nullptr, w.data()); });
        EXPECT_TRUE(contains(message, "weight of row 7")) << message;
    }
    std::fill(w.begin(), w.end(), 0.0f);
    EXPECT_TRUE(contains(
            message_of([&] { fit(good, 4, 3, {}, nullptr, w.data()); }),
            "0 of 1000 rows have a positive weight"));
}

TEST(EMSolver, NamesTheBadArgument) {
    const std::vector<float> x = make_blobs(5, 4, 2, 2);
    const auto message = [&](int64_t k, auto&& change) {
        EMOptions options;
        change(options);
        return message_of([&] { fit(x, 4, k, options); });
    };
    const auto nothing = [](EMOptions&) {};
    EXPECT_TRUE(contains(message(8, nothing), "n = 5"));
    EXPECT_TRUE(contains(message(8, nothing), "k = 8"));
    EXPECT_TRUE(contains(message(0, nothing), "k = 0"));
    EXPECT_TRUE(contains(message(-2, nothing), "k = -2"));
    EXPECT_TRUE(contains(
            message(2, [](EMOptions& o) { o.niter = -1; }), "niter = -1"));
    EXPECT_TRUE(contains(
            message(2, [](EMOptions& o) { o.nredo = 0; }), "nredo = 0"));
    EXPECT_TRUE(contains(message(2, [](EMOptions& o) { o.tol = NAN; }), "tol"));
    EXPECT_TRUE(contains(
            message(2, [](EMOptions& o) { o.variance_floor = 0; }),
            "variance_floor = 0"));
    EXPECT_TRUE(contains(
            message(2, [](EMOptions& o) { o.frozen_means = 1; }),
            "none are given"));
    Mixture start(2, 3);
    EXPECT_TRUE(contains(
            message_of([&] { fit(x, 4, 2, {}, &start); }), "dimension 3"));
    start = Mixture(3, 4);
    EXPECT_TRUE(contains(
            message_of([&] { fit(x, 4, 2, {}, &start); }), "3 initial means"));
    start = Mixture(2, 4);
    start.mean(1)[2] = NAN;
    EXPECT_TRUE(
            contains(message_of([&] { fit(x, 4, 2, {}, &start); }), "mean 1"));
}

// -------------------------------------------------------- progress and peers

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

/// Peers that are threads of this process.
class ThreadPeers {
   public:
    explicit ThreadPeers(int size) : size_(size) {}

    class Peer : public Communicator {
       public:
        Peer(ThreadPeers& all, int rank) : all_(all), rank_(rank) {}
        int rank() const override {
            return rank_;
        }
        int size() const override {
            return all_.size_;
        }
        void all_reduce_sum(std::span<double> values) override {
            all_.exchange(rank_, values, -1);
        }
        void broadcast(std::span<double> values, int root) override {
            all_.exchange(rank_, values, root);
        }

       private:
        ThreadPeers& all_;
        int rank_;
    };

   private:
    void exchange(int rank, std::span<double> values, int root) {
        std::unique_lock<std::mutex> lock(mutex_);
        const int64_t round = round_;
        parts_.resize(size_);
        parts_[rank].assign(values.begin(), values.end());
        if (++arrived_ == size_) {
            result_.assign(values.size(), 0.0);
            for (int r = 0; r < size_; r++) {
                for (size_t i = 0; i < values.size(); i++) {
                    if (root < 0 || root == r) {
                        result_[i] += parts_[r][i];
                    }
                }
            }
            arrived_ = 0;
            round_++;
            changed_.notify_all();
        }
        changed_.wait(lock, [&] { return round_ > round; });
        std::copy(result_.begin(), result_.end(), values.begin());
    }

    const int size_;
    std::mutex mutex_;
    std::condition_variable changed_;
    int arrived_ = 0;
    int64_t round_ = 0;
    std::vector<std::vector<double>> parts_;
    std::vector<double> result_;
};

std::vector<EMResult> fit_on_peers(
        const std::vector<float>& x,
        int64_t d,
        int64_t k,
        const EMOptions& options,
        const Mixture* start,
        const std::vector<int64_t>& shares,
        std::vector<std::string>& errors) {
    const int size = int(shares.size());
    ThreadPeers peers(size);
    std::vector<EMResult> results(size);
    errors.assign(size, "");
    std::vector<std::thread> threads;
    int64_t first = 0;
    for (int rank = 0; rank < size; rank++) {
        threads.emplace_back([&, rank, first] {
            errors[rank] = message_of([&] {
                CpuBackend backend;
                ThreadPeers::Peer peer(peers, rank);
                MemoryRows rows(shares[rank], d, x.data() + first * d);
                results[rank] =
                        EMSolver(backend, options, peer).fit(rows, k, start);
            });
        });
        first += shares[rank];
    }
    for (std::thread& t : threads) {
        t.join();
    }
    return results;
}

TEST(EMSolver, PeersFitWhatOneProcessFits) {
    const int64_t n = 900, d = 5, k = 7;
    const std::vector<float> x = make_blobs(n, d, k, 1.5);
    Mixture start(k, d);
    start.means = given_start(x, d, k).means;
    EMOptions options;
    options.niter = 3;
    const EMResult alone = fit(x, d, k, options, &start);
    std::vector<std::string> errors;
    const auto results =
            fit_on_peers(x, d, k, options, &start, {500, 3, 397}, errors);
    for (int rank = 0; rank < 3; rank++) {
        EXPECT_EQ(errors[rank], "");
        EXPECT_EQ(results[rank].mixture.means, results[0].mixture.means);
        EXPECT_EQ(results[rank].rows_used, n);
    }
    EXPECT_LT(difference(results[0].mixture, alone.mixture), 1e-6);
    EXPECT_NEAR(
            results[0].iterations.back().log_likelihood,
            alone.iterations.back().log_likelihood,
            1e-9);
    // Without given means, peers agree on what rank 0 draws.
    const auto drawn =
            fit_on_peers(x, d, k, options, nullptr, {500, 3, 397}, errors);
    EXPECT_EQ(drawn[2].mixture.means, drawn[0].mixture.means);
    expect_valid(drawn[0]);
}

TEST(EMSolver, ABadRowStopsAllPeers) {
    std::vector<float> x = make_blobs(900, 5, 7, 1.5);
    x[600 * 5 + 1] = NAN;
    std::vector<std::string> errors;
    fit_on_peers(x, 5, 7, {}, nullptr, {500, 400}, errors);
    EXPECT_TRUE(contains(errors[0], "another peer")) << errors[0];
    EXPECT_TRUE(contains(errors[1], "row 100 ")) << errors[1];
}

} // namespace
