#include <faiss_flashgmm/Demand.h>

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include <faiss/IndexFlat.h>

#include "face/multi_assign_cases.h"

namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;

/// Integers, so that all distances are exact.
struct DemandTest : ::testing::Test {
    static constexpr int k = 24;
    static constexpr int width = 2;
    std::vector<float> rows = base_rows();
    faiss::IndexFlatL2 quantizer{kDim};
    DemandParameters parameters;
    Demand demand;
    std::vector<idx_t> primary = std::vector<idx_t>(kRows);
    std::vector<idx_t> extra;
    std::vector<float> scores;

    DemandTest() {
        std::vector<float> centroids = clustered_rows(k, kDim, k, 5);
        for (std::vector<float>* values : {&rows, &centroids}) {
            for (float& value : *values) {
                value = std::round(8 * value);
            }
        }
        quantizer.add(k, centroids.data());
        quantizer.assign(kRows, rows.data(), primary.data());
        parameters.neighbors = 20; // rings of 8, 16 and 20
        parameters.probes = 3;
    }

    void run(idx_t n_queries = 0, const float* queries = nullptr) {
        demand.learn(
                quantizer, parameters, kRows, rows.data(), n_queries, queries);
        extra.assign(kRows * width, -1);
        scores.assign(kRows * width, -INFINITY);
        demand.extra_lists(
                quantizer,
                parameters,
                kRows,
                rows.data(),
                primary.data(),
                width,
                extra.data(),
                scores.data());
    }

    static double squared_distance(const float* a, const float* b) {
        double sum = 0;
        for (int j = 0; j < kDim; j++) {
            sum += (double(a[j]) - b[j]) * (double(a[j]) - b[j]);
        }
        return sum;
    }

    /// By the definition, without any shortcut.
    void expect_as_defined(const std::vector<float>& surrogates, bool of_rows)
            const {
        const idx_t m = surrogates.size() / kDim;
        std::vector<std::vector<double>> rank(m), weight(m);
        std::vector<double> price(k, 1);
        for (idx_t y = 0; y < m; y++) {
            const float* row = &surrogates[y * kDim];
            std::vector<idx_t> order(k);
            std::vector<float> unused(k);
            quantizer.search(1, row, k, unused.data(), order.data());
            rank[y].resize(k);
            for (int r = 0; r < k; r++) {
                rank[y][order[r]] = r + 1;
                price[order[r]] += r < parameters.probes;
            }
            std::vector<double> to_others;
            for (idx_t i = 0; i < kRows; i++) {
                if (!of_rows || i != y) {
                    to_others.push_back(squared_distance(row, &rows[i * kDim]));
                }
            }
            std::sort(to_others.begin(), to_others.end());
            const int ends[] = {0, 8, 16, 20};
            weight[y].assign(kRows, 0);
            for (int ring = 2; ring >= 0; ring--) {
                double mean = 0;
                for (int j = ends[ring]; j < ends[ring + 1]; j++) {
                    mean += 1 / (1 + j / 32.0) / (ends[ring + 1] - ends[ring]);
                }
                for (idx_t i = 0; i < kRows; i++) {
                    if (squared_distance(row, &rows[i * kDim]) <=
                        to_others[ends[ring + 1] - 1]) {
                        weight[y][i] = mean;
                    }
                }
            }
        }
        const double mean_price = (m * parameters.probes + k) / double(k);
        auto probed = [&](double r) {
            return 1 /
                    (1 +
                     std::pow(r / parameters.probes, 1 / parameters.spread));
        };
        for (idx_t i = 0; i < kRows; i++) {
            std::vector<idx_t> lists = {primary[i]};
            double last = INFINITY;
            for (int t = 0; t < width; t++) {
                std::vector<double> score(k);
                for (idx_t y = 0; y < m; y++) {
                    double nearest = k;
                    for (idx_t list : lists) {
                        nearest = std::min(nearest, rank[y][list]);
                    }
                    for (int c = 0; c < k; c++) {
                        score[c] += weight[y][i] *
                                std::max(0.0,
                                         probed(rank[y][c]) - probed(nearest));
                    }
                }
                for (int c = 0; c < k; c++) {
                    score[c] /= std::pow(
                            price[c] / mean_price, parameters.exponent);
                }
                const double best =
                        *std::max_element(score.begin(), score.end());
                const idx_t chosen = extra[i * width + t];
                if (best == 0) {
                    ASSERT_EQ(chosen, -1);
                    break;
                }
                last = std::min(last, best);
                ASSERT_GE(chosen, 0) << "row " << i;
                ASSERT_NEAR(score[chosen], best, 1e-5 * best);
                ASSERT_NEAR(scores[i * width + t], last, 1e-5 * last);
                lists.push_back(chosen);
            }
        }
    }
};

TEST_F(DemandTest, IsAsDefinedForRowsAsSurrogates) {
    run();
    EXPECT_GT(std::count(extra.begin(), extra.end(), -1), 0);
    EXPECT_LT(std::count(extra.begin(), extra.end(), -1), kRows * width / 2);
    expect_as_defined(rows, true);
}

TEST_F(DemandTest, IsAsDefinedForQueries) {
    parameters.spread = 0.2;
    parameters.exponent = 0.7;
    std::vector<float> queries = query_rows();
    for (float& value : queries) {
        value = std::round(8 * value);
    }
    run(kQueries, queries.data());
    expect_as_defined(queries, false);
}

TEST_F(DemandTest, DoesNotDependOnTheNumberOfRowsGivenAtOnce) {
    run();
    for (idx_t i = 0; i < kRows; i += 37) {
        idx_t alone[width] = {-1, -1};
        float its_scores[width];
        demand.extra_lists(
                quantizer,
                parameters,
                1,
                &rows[i * kDim],
                &primary[i],
                width,
                alone,
                its_scores);
        EXPECT_EQ(alone[0], extra[i * width]);
        EXPECT_EQ(alone[1], extra[i * width + 1]);
    }
}

TEST_F(DemandTest, KeepsAsManySurrogatesAsWanted) {
    parameters.surrogates = 100;
    run();
    EXPECT_EQ(demand.rows.size(), 100u * kDim);
    EXPECT_EQ(demand.begin.back(), 100);
    EXPECT_LT(std::count(extra.begin(), extra.end(), -1), kRows * width);
}

TEST_F(DemandTest, SmallSetsAndReachesWork) {
    parameters.neighbors = 128;
    parameters.reach = 1;
    demand.learn(quantizer, parameters, 5, rows.data(), 0, nullptr);
    idx_t lists[5 * width];
    float its_scores[5 * width];
    std::fill_n(lists, 5 * width, -1);
    demand.extra_lists(
            quantizer,
            parameters,
            5,
            rows.data(),
            primary.data(),
            width,
            lists,
            its_scores);
    for (int i = 0; i < 5 * width; i++) {
        EXPECT_NE(lists[i], primary[i / width]);
        EXPECT_LT(lists[i], k);
    }
}

TEST_F(DemandTest, RefusesWhatDoesNotFit) {
    EXPECT_NE(
            message_of([&] {
                demand.check(quantizer, parameters);
            }).find("train"),
            std::string::npos);
    run();
    demand.check(quantizer, parameters);
    const Demand good = demand;
    const std::vector<std::function<void()>> damages = {
            [&] { demand.rows.pop_back(); },
            [&] { demand.radii.pop_back(); },
            [&] { demand.order.pop_back(); },
            [&] { demand.prices.pop_back(); },
            [&] { demand.begin.pop_back(); },
            [&] { demand.begin.back() = -7; },
            [&] { demand.begin[1] = demand.begin[2] + 1; },
            [&] { demand.begin[0] = -1; },
            [&] { demand.order[3] = k; },
            [&] { demand.order[3] = -2; },
            [&] { demand.prices[2] = 0; },
            [&] { demand.prices[2] = NAN; },
    };
    for (size_t i = 0; i < damages.size(); i++) {
        demand = good;
        damages[i]();
        EXPECT_NE(message_of([&] { demand.check(quantizer, parameters); }), "")
                << "damage " << i;
    }
}

} // namespace
} // namespace faiss_flashgmm
