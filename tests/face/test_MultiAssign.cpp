#include <faiss_flashgmm/MultiAssign.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include <faiss/IndexFlat.h>

#include "face/multi_assign_cases.h"

namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;

double squared_distance(const float* a, const float* b, int d) {
    double sum = 0;
    for (int j = 0; j < d; j++) {
        sum += (double(a[j]) - b[j]) * (double(a[j]) - b[j]);
    }
    return sum;
}

/// Means at rows of clustered data, variances and weights of a wide range.
Mixture some_mixture(int k, int d) {
    Mixture mixture(k, d);
    mixture.means = clustered_rows(k, d, k, 5);
    double sum = 0;
    for (int c = 0; c < k; c++) {
        mixture.variances[c] = 0.2 + 0.05 * (c % 7);
        sum += mixture.weights[c] = 1 + c % 3;
    }
    for (double& weight : mixture.weights) {
        weight /= sum;
    }
    return mixture;
}

/// log responsibilities of one row, by the definition in fp64
std::vector<double> log_responsibilities(
        const Mixture& mixture,
        const float* row) {
    std::vector<double> logs(mixture.k);
    for (int64_t c = 0; c < mixture.k; c++) {
        const double variance = mixture.variances[c];
        logs[c] = std::log(mixture.weights[c]) -
                0.5 * mixture.d * std::log(2 * M_PI * variance) -
                squared_distance(row, mixture.mean(c), mixture.d) /
                        (2 * variance);
    }
    const double top = *std::max_element(logs.begin(), logs.end());
    double sum = 0;
    for (double value : logs) {
        sum += std::exp(value - top);
    }
    for (double& value : logs) {
        value -= top + std::log(sum);
    }
    return logs;
}

struct MultiAssignTest : ::testing::Test {
    static constexpr int k = 40;
    Mixture mixture = some_mixture(k, kDim);
    faiss::IndexFlatL2 quantizer{kDim};
    const std::vector<float>& rows = base_rows();
    std::vector<idx_t> primary = std::vector<idx_t>(kRows);
    std::vector<idx_t> extra = std::vector<idx_t>(kRows);
    std::vector<float> scores = std::vector<float>(kRows);

    MultiAssignTest() {
        quantizer.add(k, mixture.means.data());
        quantizer.assign(kRows, rows.data(), primary.data());
    }

    void run(const MultiAssign& assigner) {
        assigner.extra_lists(
                quantizer,
                mixture,
                kRows,
                rows.data(),
                primary.data(),
                extra.data(),
                scores.data());
    }
};

TEST_F(MultiAssignTest, PosteriorIsTheMostResponsibleOtherComponentOverTau) {
    for (double tau : {-1.0, 0.0, 1e-3, 0.3}) {
        MultiAssign assigner;
        assigner.tau = tau;
        run(assigner);
        const double log_tau = std::log(tau < 0 ? 1.0 / k : tau);
        size_t stored = 0;
        for (idx_t i = 0; i < kRows; i++) {
            const std::vector<double> logs =
                    log_responsibilities(mixture, &rows[i * kDim]);
            double best = -INFINITY;
            for (int c = 0; c < k; c++) {
                if (c != primary[i]) {
                    best = std::max(best, logs[c]);
                }
            }
            if (std::abs(best - log_tau) < 1e-3) {
                continue; // too near the threshold to say
            }
            ASSERT_EQ(extra[i] >= 0, best > log_tau) << "row " << i;
            if (extra[i] >= 0) {
                stored++;
                ASSERT_NE(extra[i], primary[i]);
                ASSERT_NEAR(logs[extra[i]], best, 1e-3);
                ASSERT_NEAR(scores[i], best, 1e-3);
            } else {
                ASSERT_EQ(scores[i], -INFINITY);
            }
        }
        EXPECT_GT(stored, 0u);
        EXPECT_EQ(stored == kRows, tau == 0);
    }
}

TEST_F(MultiAssignTest, PosteriorGoesOnToTheMostResponsibleOnes) {
    MultiAssign assigner;
    assigner.tau = 1e-4;
    assigner.max_entries = 4;
    extra.resize(kRows * 3);
    scores.resize(kRows * 3);
    run(assigner);
    size_t third = 0;
    for (idx_t i = 0; i < kRows; i++) {
        std::vector<double> logs =
                log_responsibilities(mixture, &rows[i * kDim]);
        logs[primary[i]] = -INFINITY;
        std::sort(logs.rbegin(), logs.rend());
        for (int t = 0; t < 3; t++) {
            if (std::abs(logs[t] - std::log(1e-4)) < 1e-3) {
                continue;
            }
            ASSERT_EQ(extra[i * 3 + t] >= 0, logs[t] > std::log(1e-4));
            if (extra[i * 3 + t] >= 0) {
                ASSERT_NEAR(scores[i * 3 + t], logs[t], 1e-3);
                third += t == 2;
            }
        }
    }
    EXPECT_GT(third, 0u);
}

TEST_F(MultiAssignTest, RanksByLogWhereResponsibilitiesUnderflow) {
    constexpr int d = 768;
    Mixture tight(4, d);
    for (int c = 0; c < 4; c++) {
        std::fill_n(tight.mean(c), d, float(c * c));
        tight.variances[c] = 1e-3;
    }
    faiss::IndexFlatL2 means(d);
    means.add(4, tight.means.data());
    const std::vector<float> row(d, 0.1f);
    const idx_t nearest = 0;
    idx_t second = -1;
    float score = 0;
    MultiAssign assigner;
    assigner.tau = 0;
    assigner.extra_lists(
            means, tight, 1, row.data(), &nearest, &second, &score);
    EXPECT_EQ(second, 1);
    EXPECT_LT(score, -1000); // exp() of it is 0
    assigner.tau = -1;
    assigner.extra_lists(
            means, tight, 1, row.data(), &nearest, &second, &score);
    EXPECT_EQ(second, -1);
}

TEST_F(MultiAssignTest, NearestIsTheNearestOtherCentroidWithinTheRatio) {
    for (double ratio : {0.0, 1.0, 1.1, 1.5}) {
        MultiAssign assigner;
        assigner.policy = AssignPolicy::nearest;
        assigner.distance_ratio = ratio;
        run(assigner);
        size_t stored = 0;
        for (idx_t i = 0; i < kRows; i++) {
            const float* row = &rows[i * kDim];
            const double d1 = std::sqrt(
                    squared_distance(row, mixture.mean(primary[i]), kDim));
            double d2 = INFINITY;
            for (int c = 0; c < k; c++) {
                if (c != primary[i]) {
                    d2 = std::min(
                            d2,
                            std::sqrt(squared_distance(
                                    row, mixture.mean(c), kDim)));
                }
            }
            if (std::abs(d2 / d1 - ratio) < 1e-5) {
                continue;
            }
            ASSERT_EQ(extra[i] >= 0, ratio == 0 || d2 <= ratio * d1);
            if (extra[i] >= 0) {
                stored++;
                ASSERT_NE(extra[i], primary[i]);
                ASSERT_NEAR(scores[i], std::log(d1 / d2), 1e-3);
            }
        }
        EXPECT_EQ(stored == kRows, ratio == 0);
        EXPECT_EQ(stored > 0, ratio != 1.0);
    }
}

TEST_F(MultiAssignTest, ARowThatIsItsCentroidHasNoSecondListWithinARatio) {
    MultiAssign assigner;
    assigner.policy = AssignPolicy::nearest;
    assigner.distance_ratio = 3;
    std::vector<idx_t> own(k), second(k);
    for (int c = 0; c < k; c++) {
        own[c] = c;
    }
    assigner.extra_lists(
            quantizer,
            mixture,
            k,
            mixture.means.data(),
            own.data(),
            second.data());
    EXPECT_EQ(second, std::vector<idx_t>(k, -1));
}

TEST_F(MultiAssignTest, ARowInNoListGetsNone) {
    for (AssignPolicy policy :
         {AssignPolicy::posterior, AssignPolicy::nearest}) {
        MultiAssign assigner;
        assigner.policy = policy;
        assigner.tau = 0;
        std::fill(primary.begin(), primary.end(), -1);
        run(assigner);
        EXPECT_EQ(extra, std::vector<idx_t>(kRows, -1));
    }
}

TEST_F(MultiAssignTest, KeepsACallersPrimaryListApart) {
    // the most responsible and the nearest component may be the second list
    for (AssignPolicy policy :
         {AssignPolicy::posterior, AssignPolicy::nearest}) {
        MultiAssign assigner;
        assigner.policy = policy;
        const std::vector<idx_t> nearest = primary;
        for (idx_t& list : primary) {
            list = (list + 1) % k;
        }
        run(assigner);
        idx_t same = 0;
        for (idx_t i = 0; i < kRows; i++) {
            ASSERT_NE(extra[i], primary[i]);
            same += extra[i] == nearest[i];
        }
        EXPECT_GT(same, kRows / 2);
        primary = nearest;
    }
}

TEST_F(MultiAssignTest, OneListOrOnePolicyLeavesNothingToChoose) {
    faiss::IndexFlatL2 one(kDim);
    one.add(1, mixture.means.data());
    const Mixture single_component(1, kDim);
    std::fill(primary.begin(), primary.end(), 0);
    for (AssignPolicy policy :
         {AssignPolicy::posterior, AssignPolicy::nearest}) {
        MultiAssign assigner;
        assigner.policy = policy;
        assigner.tau = 0;
        assigner.extra_lists(
                one,
                single_component,
                kRows,
                rows.data(),
                primary.data(),
                extra.data());
        EXPECT_EQ(extra, std::vector<idx_t>(kRows, -1));
    }
    MultiAssign single;
    single.policy = AssignPolicy::single;
    EXPECT_EQ(single.max_lists(), 1);
    single.extra_lists(
            quantizer, mixture, kRows, rows.data(), primary.data(), nullptr);
}

TEST_F(MultiAssignTest, RefusesOptionsOutOfRange) {
    MultiAssign assigner;
    assigner.tau = NAN;
    EXPECT_NE(
            message_of([&] { run(assigner); }).find("tau"), std::string::npos);
    assigner = {};
    for (double ratio : {-1.0, double(NAN)}) {
        assigner.distance_ratio = ratio;
        EXPECT_NE(
                message_of([&] { run(assigner); }).find("distance_ratio"),
                std::string::npos);
    }
    const std::pair<const char*, std::function<void()>> changes[] = {
            {"max_entries is 9", [&] { assigner.max_entries = 9; }},
            {"max_entries is 0", [&] { assigner.max_entries = 0; }},
            {"max_inflation is 0.5", [&] { assigner.max_inflation = 0.5; }},
            {"max_inflation is nan", [&] { assigner.max_inflation = NAN; }},
            {"air_lambda is 2", [&] { assigner.air_lambda = 2; }},
            {"soar_lambda is -1", [&] { assigner.soar_lambda = -1; }},
            {"candidates is 0", [&] { assigner.candidates = 0; }},
            {"neighbors is 0",
             [&] { assigner.demand_parameters.neighbors = 0; }},
            {"recall is 0", [&] { assigner.demand_parameters.recall = 0; }},
            {"probes is -1", [&] { assigner.demand_parameters.probes = -1; }},
            {"spread is 0", [&] { assigner.demand_parameters.spread = 0; }},
            {"price_weight is -1",
             [&] { assigner.demand_parameters.price_weight = -1; }},
            {"query_weight is 0",
             [&] { assigner.demand_parameters.query_weight = 0; }},
            {"reach is -1", [&] { assigner.demand_parameters.reach = -1; }},
            {"surrogates is -1",
             [&] { assigner.demand_parameters.surrogates = -1; }},
    };
    for (const auto& [text, change] : changes) {
        assigner = {};
        change();
        EXPECT_NE(
                message_of([&] { run(assigner); }).find(text),
                std::string::npos)
                << text;
    }
    assigner = {};
    assigner.policy = AssignPolicy(17);
    EXPECT_NE(message_of([&] { run(assigner); }).find("17"), std::string::npos);
}

TEST_F(MultiAssignTest, PosteriorNeedsTheMixtureOfTheseLists) {
    mixture = some_mixture(k - 1, kDim);
    EXPECT_NE(
            message_of([&] { run(MultiAssign()); }).find("39"),
            std::string::npos);
}

} // namespace
} // namespace faiss_flashgmm
