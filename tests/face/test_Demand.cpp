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
        parameters.reach = k;
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
    /// @param surrogates   the rows, then queries
    void expect_as_defined(const std::vector<float>& surrogates) const {
        const idx_t m = surrogates.size() / kDim;
        const int kept = 4 * parameters.probes; // of an order
        std::vector<std::vector<double>> rank(m), weight(m);
        std::vector<double> price(k, 1);
        double all_weights = 0, all_prices = 0;
        for (idx_t y = 0; y < m; y++) {
            const float* row = &surrogates[y * kDim];
            const double its_weight = y < kRows ? 1 : parameters.query_weight;
            std::vector<idx_t> order(k);
            std::vector<float> unused(k);
            quantizer.search(1, row, k, unused.data(), order.data());
            rank[y].resize(k);
            for (int r = 0; r < k; r++) {
                rank[y][order[r]] = std::min(r, kept) + 1;
                price[order[r]] += r < parameters.probes ? its_weight : 0;
            }
            std::vector<double> to_others;
            for (idx_t i = 0; i < kRows; i++) {
                if (i != y) {
                    to_others.push_back(squared_distance(row, &rows[i * kDim]));
                }
            }
            std::sort(to_others.begin(), to_others.end());
            const int ends[] = {0, 8, 16, 20};
            weight[y].assign(kRows, 0);
            for (int ring = 2; ring >= 0; ring--) {
                double mean = 0;
                for (int j = ends[ring]; j < ends[ring + 1]; j++) {
                    mean += its_weight / (1 + j / 32.0) /
                            (ends[ring + 1] - ends[ring]);
                }
                all_weights += mean * (ends[ring + 1] - ends[ring]);
                for (idx_t i = 0; i < kRows; i++) {
                    if (squared_distance(row, &rows[i * kDim]) <=
                        to_others[ends[ring + 1] - 1]) {
                        weight[y][i] = mean;
                    }
                }
            }
        }
        for (double p : price) {
            all_prices += p;
        }
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
                    score[c] = score[c] * kRows / all_weights -
                            parameters.price_weight * price[c] * k / all_prices;
                }
                const double best =
                        *std::max_element(score.begin(), score.end());
                const idx_t chosen = extra[i * width + t];
                if (best < 1e-6) {
                    ASSERT_LT(scores[i * width + t], 1e-6);
                    break;
                }
                last = std::min(last, best);
                ASSERT_GE(chosen, 0) << "row " << i;
                ASSERT_NEAR(score[chosen], best, 1e-6);
                ASSERT_NEAR(scores[i * width + t], last, 1e-6);
                lists.push_back(chosen);
            }
        }
    }
};

TEST_F(DemandTest, IsAsDefinedForRowsAsSurrogates) {
    run();
    EXPECT_GT(std::count(extra.begin(), extra.end(), -1), 0);
    EXPECT_LT(std::count(extra.begin(), extra.end(), -1), kRows * width / 2);
    expect_as_defined(rows);
}

TEST_F(DemandTest, IsAsDefinedWithQueries) {
    parameters.spread = 0.2;
    parameters.price_weight = 0.01;
    parameters.query_weight = 7;
    std::vector<float> queries = query_rows();
    for (float& value : queries) {
        value = std::round(8 * value);
    }
    run(kQueries, queries.data());
    std::vector<float> surrogates = rows;
    surrogates.insert(surrogates.end(), queries.begin(), queries.end());
    expect_as_defined(surrogates);
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

TEST_F(DemandTest, LearnsWhichProbesToServe) {
    // All are looked at: there are fewer rows than the sample holds.
    std::vector<double> at_place(k);
    double all = 0;
    for (idx_t y = 0; y < kRows; y++) {
        std::vector<idx_t> order(k);
        std::vector<float> unused(k);
        const float* row = &rows[y * kDim];
        quantizer.search(1, row, k, unused.data(), order.data());
        std::vector<std::pair<double, idx_t>> to_others;
        for (idx_t i = 0; i < kRows; i++) {
            if (i != y) {
                to_others.push_back(
                        {squared_distance(row, &rows[i * kDim]), i});
            }
        }
        std::sort(to_others.begin(), to_others.end());
        for (int j = 0; j < parameters.neighbors; j++) {
            const idx_t place = std::find(
                                        order.begin(),
                                        order.end(),
                                        primary[to_others[j].second]) -
                    order.begin();
            at_place[place] += 1 / (1 + j / 32.0);
            all += 1 / (1 + j / 32.0);
        }
    }
    parameters.probes = 0;
    int64_t last = 0;
    for (double recall : {0.3, 0.9, 0.99}) {
        parameters.recall = recall;
        demand.learn(quantizer, parameters, kRows, rows.data(), 0, nullptr);
        int lists = 0;
        for (double found = 0; found < recall * all; lists++) {
            found += at_place[lists];
        }
        // Neighbors at equal distances may be counted once more.
        EXPECT_NEAR(double(demand.probes), 0.5 * lists, 1) << recall;
        EXPECT_GE(demand.probes, last);
        EXPECT_EQ(
                demand.order.size(),
                kRows * std::min<size_t>(4 * demand.probes, k));
        last = demand.probes;
    }
    EXPECT_GT(last, 1);
}

TEST_F(DemandTest, StoresNothingThatCostsMoreThanItSaves) {
    run();
    const auto none = [&] {
        return std::count(extra.begin(), extra.end(), -1);
    };
    const auto of_low_price = none();
    parameters.price_weight = 0.5;
    run();
    EXPECT_GT(none(), of_low_price);
    parameters.price_weight = 1000;
    run();
    EXPECT_EQ(none(), kRows * width);
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
            [&] { demand.weights.pop_back(); },
            [&] { demand.weights[1] = NAN; },
            [&] { demand.probes = 0; },
            [&] { demand.probes = 2; },
            [&] { demand.votes = NAN; },
            [&] { demand.votes = -1; },
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
