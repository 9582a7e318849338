// Difficult data and bad input.

#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "fits.h"

namespace {

using namespace faiss_flashgmm;

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

} // namespace
