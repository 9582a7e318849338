#include <cmath>

#include <gtest/gtest.h>

#include <faiss_flashgmm/em/MStep.h>

namespace {

using namespace faiss_flashgmm;
using S = SufficientStats;

/// Statistics of rows that belong to one component each.
SufficientStats hard_stats(
        const Mixture& m,
        const std::vector<std::vector<double>>& rows,
        const std::vector<int>& owner) {
    SufficientStats stats(m.k, m.d);
    for (size_t i = 0; i < rows.size(); i++) {
        const int c = owner[i];
        stats.counts()[c] += 1;
        for (int64_t j = 0; j < m.d; j++) {
            const double delta = rows[i][j] - m.mean(c)[j];
            stats.squared()[c] += delta * delta;
            stats.sums()[c * m.d + j] += rows[i][j];
        }
    }
    stats.scalar(S::kWeight) = double(rows.size());
    stats.scalar(S::kRows) = double(rows.size());
    return stats;
}

const std::vector<std::vector<double>> kRows =
        {{0, 0}, {2, 0}, {0, 2}, {2, 2}, {10, 10}, {14, 10}};
const std::vector<int> kOwner = {0, 0, 0, 0, 1, 1};

Mixture start() {
    Mixture m(2, 2);
    m.means = {5, -3, 11, 17}; // far from the rows: the variance is about the
    return m;                  // new mean nevertheless
}

TEST(MStep, VarianceIsAboutTheNewMean) {
    Mixture m = start();
    const MStepReport report = maximize(
            hard_stats(m, kRows, kOwner), {}, Conditioning::identity(2), 1, m);
    EXPECT_FLOAT_EQ(m.mean(0)[0], 1);
    EXPECT_FLOAT_EQ(m.mean(0)[1], 1);
    EXPECT_FLOAT_EQ(m.mean(1)[0], 12);
    EXPECT_FLOAT_EQ(m.mean(1)[1], 10);
    EXPECT_NEAR(m.variances[0], 1, 1e-12); // (1 + 1) / 2
    EXPECT_NEAR(m.variances[1], 2, 1e-12); // (4 + 0) / 2
    EXPECT_NEAR(m.weights[0], 4.0 / 6, 1e-12);
    EXPECT_NEAR(report.moved_mass, 4.0 / 6 - 0.5, 1e-12);
    EXPECT_NEAR(report.imbalance, 2 * (16 + 4) / 36.0, 1e-12);
    EXPECT_EQ(report.empty, 0);
}

TEST(MStep, TiedVarianceAndUniformWeights) {
    EMOptions options;
    options.variance = VarianceModel::tied;
    options.weights = WeightModel::uniform;
    Mixture m = start();
    maximize(
            hard_stats(m, kRows, kOwner),
            options,
            Conditioning::identity(2),
            1,
            m);
    EXPECT_NEAR(m.variances[0], (4 * 1 + 2 * 2) / 6.0, 1e-12);
    EXPECT_EQ(m.variances[0], m.variances[1]);
    EXPECT_EQ(m.weights[0], 0.5);
}

TEST(MStep, FrozenMeansKeepTheirVarianceAboutThemselves) {
    EMOptions options;
    options.frozen_means = 1;
    Mixture m = start();
    maximize(
            hard_stats(m, kRows, kOwner),
            options,
            Conditioning::identity(2),
            1,
            m);
    EXPECT_EQ(m.mean(0)[0], 5);
    EXPECT_EQ(m.mean(0)[1], -3);
    // about (5, -3): 1 + 16 + 16 for the mean of the rows, and 1 a coordinate
    EXPECT_NEAR(m.variances[0], 1 + 32 / 2.0, 1e-12);
    EXPECT_FLOAT_EQ(m.mean(1)[0], 12);
}

TEST(MStep, UnitMeansHaveNormOneInUserUnits) {
    EMOptions options;
    options.constraint = MeanConstraint::unit;
    Conditioning conditioning = Conditioning::identity(2);
    conditioning.scale = 0.25;
    Mixture m = start();
    maximize(hard_stats(m, kRows, kOwner), options, conditioning, 1, m);
    for (int64_t c = 0; c < 2; c++) {
        EXPECT_NEAR(std::hypot(m.mean(c)[0], m.mean(c)[1]) * 0.25, 1, 1e-6);
    }
    EXPECT_NEAR(m.mean(0)[0], m.mean(0)[1], 1e-6); // direction (1, 1)
    // The variance is about the mean that is kept.
    double expected = 0;
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 2; j++) {
            const double delta = kRows[i][j] - m.mean(0)[j];
            expected += delta * delta / 8;
        }
    }
    EXPECT_NEAR(m.variances[0], expected, 1e-9);
}

TEST(MStep, IntegerMeansAreRoundedInUserUnits) {
    EMOptions options;
    options.constraint = MeanConstraint::integer;
    Conditioning conditioning = Conditioning::identity(2);
    conditioning.scale = 8;
    conditioning.shift = {100.25f, -3.0f};
    Mixture m = start();
    maximize(hard_stats(m, kRows, kOwner), options, conditioning, 1, m);
    const Mixture user = conditioning.to_user(m);
    EXPECT_EQ(user.mean(0)[0], 108); // 1 * 8 + 100.25
    EXPECT_EQ(user.mean(0)[1], 5);
}

TEST(MStep, VarianceNeverFallsUnderTheFloor) {
    const std::vector<std::vector<double>> rows(6, {3, 3});
    Mixture m = start();
    const MStepReport report = maximize(
            hard_stats(m, rows, kOwner), {}, Conditioning::identity(2), 1, m);
    EXPECT_EQ(report.at_floor, 2);
    EXPECT_EQ(m.variances[0], 1e-6);
}

TEST(MStep, EmptyComponentSharesTheLargestOne) {
    Mixture m(3, 2);
    m.means = {5, -3, 11, 17, 1000, 1000};
    const SufficientStats stats = hard_stats(m, kRows, kOwner);
    const MStepReport report =
            maximize(stats, {}, Conditioning::identity(2), 1, m);
    EXPECT_EQ(report.empty, 1);
    EXPECT_EQ(report.revived, 1);
    EXPECT_NEAR(m.weights[0], 2.0 / 6, 1e-12);
    EXPECT_NEAR(m.weights[2], 2.0 / 6, 1e-12);
    EXPECT_EQ(m.variances[2], m.variances[0]);
    for (int j = 0; j < 2; j++) { // on both sides of (1, 1)
        EXPECT_NEAR(m.mean(0)[j] + m.mean(2)[j], 2, 1e-6);
        EXPECT_NE(m.mean(0)[j], m.mean(2)[j]);
    }
    EXPECT_NEAR(m.weights[0] + m.weights[1] + m.weights[2], 1, 1e-12);
}

TEST(MStep, WhatAnEmptyComponentHadIsNotLost) {
    Mixture m(3, 2);
    m.means = {5, -3, 11, 17, 0, 0};
    SufficientStats stats = hard_stats(m, kRows, kOwner);
    EMOptions options;
    options.empty_threshold = 0.2; // of a mean count of 2
    stats.counts()[0] -= 0.25;
    stats.counts()[2] += 0.25;
    const MStepReport report =
            maximize(stats, options, Conditioning::identity(2), 1, m);
    EXPECT_EQ(report.revived, 1);
    EXPECT_NEAR(m.weights[0] + m.weights[1] + m.weights[2], 1, 1e-12);
    EXPECT_EQ(m.weights[2], m.weights[0]);
    m.check();
}

TEST(MStep, AlikeRowsAreNotSplit) {
    const std::vector<std::vector<double>> rows(6, {3, 3});
    Mixture m(3, 2);
    const MStepReport report = maximize(
            hard_stats(m, rows, {0, 0, 0, 0, 0, 0}),
            {},
            Conditioning::identity(2),
            1,
            m);
    EXPECT_EQ(report.empty, 2);
    EXPECT_EQ(report.revived, 0);
    EXPECT_EQ(m.weights[1], 0);
}

} // namespace
