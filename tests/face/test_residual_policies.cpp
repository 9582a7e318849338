#include <faiss_flashgmm/residual_policies.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include <faiss/IndexFlat.h>

#include "face/multi_assign_cases.h"

namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;
using Vector = std::vector<double>;

double dot(const Vector& a, const Vector& b) {
    double sum = 0;
    for (size_t j = 0; j < a.size(); j++) {
        sum += a[j] * b[j];
    }
    return sum;
}

/// Lists chosen among all others, of rows that are centroids themselves too.
struct ResidualPoliciesTest : ::testing::Test {
    static constexpr int k = 24;
    std::vector<float> rows = base_rows();
    faiss::IndexFlatL2 quantizer{kDim};
    std::vector<idx_t> primary = std::vector<idx_t>(kRows);
    std::vector<idx_t> extra;
    std::vector<float> scores;
    MultiAssign assigner;

    ResidualPoliciesTest() {
        quantizer.add(k, clustered_rows(k, kDim, k, 5).data());
        quantizer.assign(kRows, rows.data(), primary.data());
        assigner.candidates = k;
        assigner.max_entries = 4;
    }

    void run(AssignPolicy policy) {
        assigner.policy = policy;
        extra.resize(kRows * 3);
        scores.resize(extra.size());
        assigner.extra_lists(
                quantizer,
                {},
                kRows,
                rows.data(),
                primary.data(),
                extra.data(),
                scores.data());
    }

    Vector residual(idx_t row, idx_t list) const {
        Vector r(kDim);
        for (int j = 0; j < kDim; j++) {
            r[j] = double(rows[row * kDim + j]) -
                    quantizer.get_xb()[list * kDim + j];
        }
        return r;
    }

    /// Each list is the one of least loss given those before, by definition.
    void expect_least(const std::function<
                      double(const Vector& r, const std::vector<Vector>& kept)>&
                              loss) const {
        for (idx_t i = 0; i < kRows; i++) {
            std::vector<Vector> kept = {residual(i, primary[i])};
            std::vector<idx_t> lists = {primary[i]};
            const double norm = dot(kept[0], kept[0]);
            double score = INFINITY;
            for (int t = 0; t < 3; t++) {
                double least = INFINITY;
                for (idx_t c = 0; c < k; c++) {
                    if (!std::count(lists.begin(), lists.end(), c)) {
                        least = std::min(least, loss(residual(i, c), kept));
                    }
                }
                const idx_t chosen = extra[i * 3 + t];
                if (std::isinf(least)) {
                    ASSERT_EQ(chosen, -1);
                    ASSERT_EQ(scores[i * 3 + t], -INFINITY);
                    continue;
                }
                ASSERT_GE(chosen, 0);
                ASSERT_FALSE(std::count(lists.begin(), lists.end(), chosen));
                ASSERT_NEAR(
                        loss(residual(i, chosen), kept),
                        least,
                        1e-6 * std::abs(least));
                score = std::min(score, -least / norm);
                ASSERT_NEAR(scores[i * 3 + t], score, 1e-5 * std::abs(score));
                lists.push_back(chosen);
                kept.push_back(residual(i, chosen));
            }
        }
    }
};

TEST_F(ResidualPoliciesTest, AirIsTheListOfLeastLoss) {
    for (double lambda : {0.0, 0.5, 1.0}) {
        assigner.air_lambda = lambda;
        run(AssignPolicy::air);
        expect_least([&](const Vector& r, const std::vector<Vector>& kept) {
            double sum = dot(r, r);
            for (const Vector& other : kept) {
                sum += lambda * dot(other, r);
            }
            return sum;
        });
    }
}

TEST_F(ResidualPoliciesTest, RelaxedAirKeepsOneCopyWhereItIsBetter) {
    assigner.air_relaxed = true;
    assigner.air_lambda = 0.8;
    run(AssignPolicy::air);
    expect_least([&](const Vector& r, const std::vector<Vector>& kept) {
        double sum = dot(r, r);
        for (const Vector& other : kept) {
            sum += 0.8 * dot(other, r);
        }
        return sum < 1.8 * dot(kept[0], kept[0]) ? sum : INFINITY;
    });
    const auto none = std::count(extra.begin(), extra.end(), -1);
    EXPECT_GT(none, 0);
    EXPECT_LT(none, kRows * 3);
}

TEST_F(ResidualPoliciesTest, SoarIsTheListOfLeastLoss) {
    for (double lambda : {0.0, 1.0, 4.0}) {
        assigner.soar_lambda = lambda;
        run(AssignPolicy::soar);
        expect_least([&](const Vector& r, const std::vector<Vector>& kept) {
            double sum = dot(r, r);
            for (const Vector& other : kept) {
                const double product = dot(other, r);
                sum += lambda * product * product / dot(other, other);
            }
            return sum;
        });
    }
}

TEST_F(ResidualPoliciesTest, RngRuleLeavesOutListsBehindOneThatIsKept) {
    assigner.rng_rule = true;
    assigner.distance_ratio = 1.6;
    run(AssignPolicy::nearest);
    size_t stored = 0, left_out = 0;
    for (idx_t i = 0; i < kRows; i++) {
        std::vector<idx_t> order(k);
        std::vector<float> distances(k);
        quantizer.search(1, &rows[i * kDim], k, distances.data(), order.data());
        const double first = distances[0];
        std::vector<idx_t> kept = {primary[i]};
        for (idx_t c : order) {
            const Vector r = residual(i, c);
            if (c == primary[i] || dot(r, r) > 1.6 * 1.6 * first) {
                continue;
            }
            bool behind = false;
            for (idx_t other : kept) {
                Vector between = residual(i, other);
                for (int j = 0; j < kDim; j++) {
                    between[j] -= r[j];
                }
                behind |= dot(between, between) < dot(r, r);
            }
            left_out += behind;
            if (!behind && kept.size() < 4) {
                kept.push_back(c);
            }
        }
        stored += kept.size() - 1;
        kept.resize(4, -1);
        ASSERT_EQ(
                std::vector<idx_t>(&extra[i * 3], &extra[i * 3] + 3),
                std::vector<idx_t>(kept.begin() + 1, kept.end()));
    }
    EXPECT_GT(stored, 0u);
    EXPECT_GT(left_out, 0u);
}

TEST_F(ResidualPoliciesTest, ARowThatIsItsCentroidIsStoredOnce) {
    std::copy_n(quantizer.get_xb(), k * kDim, rows.begin());
    for (int c = 0; c < k; c++) {
        primary[c] = c;
    }
    for (AssignPolicy policy :
         {AssignPolicy::nearest, AssignPolicy::air, AssignPolicy::soar}) {
        run(policy);
        EXPECT_EQ(std::count(extra.begin(), extra.begin() + k * 3, -1), k * 3);
        EXPECT_GE(extra[k * 3], 0);
    }
}

} // namespace
} // namespace faiss_flashgmm
