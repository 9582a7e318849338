#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include <faiss_flashgmm/cpu/RowScanner.h>

namespace {

using namespace faiss_flashgmm;

Mixture random_mixture(int64_t k, int64_t d, double spread, double span) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<double> uniform(-0.5, 0.5);
    Mixture m(k, d);
    for (float& v : m.means) {
        v = float(spread) * normal(random);
    }
    for (double& s : m.variances) {
        s = std::pow(span, uniform(random));
    }
    return m;
}

double exact_logit(const LogitTables& t, int64_t c, const float* x) {
    double distance = 0;
    for (int64_t j = 0; j < t.mixture.d; j++) {
        const double delta = double(x[j]) - t.mixture.mean(c)[j];
        distance += delta * delta;
    }
    return t.level[c] - t.precision[c] * distance;
}

struct Shape {
    int64_t k, d;
    double spread, span;
};

class Scanning : public testing::TestWithParam<Shape> {
   protected:
    void SetUp() override {
        const Shape s = GetParam();
        tables_.reset(random_mixture(s.k, s.d, s.spread, s.span));
        std::mt19937 random(4);
        std::normal_distribution<float> normal;
        x_.resize(kRows * s.d);
        for (int64_t i = 0; i < kRows; i++) {
            const int64_t c = int64_t(random()) % s.k;
            for (int64_t j = 0; j < s.d; j++) {
                x_[i * s.d + j] = tables_.mixture.mean(c)[j] +
                        float(std::sqrt(tables_.mixture.variances[c])) *
                                normal(random);
            }
        }
    }

    static constexpr int64_t kRows = RowScanner::kTileRows;
    LogitTables tables_;
    std::vector<float> x_;
};

TEST_P(Scanning, KeepsExactlyWhatMatters) {
    const auto [k, d, spread, span] = GetParam();
    RowScanner scanner(tables_);
    for (const int64_t m : {int64_t(1), int64_t(2), int64_t(9), k}) {
        if (m > k) {
            continue;
        }
        scanner.scan(kRows, x_.data(), m);
        for (int64_t i = 0; i < kRows; i++) {
            std::vector<double> exact(k);
            for (int64_t c = 0; c < k; c++) {
                exact[c] = exact_logit(tables_, c, x_.data() + i * d);
            }
            std::vector<double> sorted = exact;
            std::sort(sorted.rbegin(), sorted.rend());
            const double cut = std::min(sorted[0] - kKeepBits, sorted[m - 1]);
            const auto& kept = scanner.row(i).candidates;
            std::vector<bool> is_kept(k, false);
            for (const Candidate& c : kept) {
                is_kept[c.component] = true;
                EXPECT_NEAR(
                        c.logit,
                        exact[c.component],
                        1e-6 *
                                (1 + std::abs(tables_.level[c.component]) +
                                 std::abs(exact[c.component])));
            }
            for (int64_t c = 0; c < k; c++) {
                // fp32 distances leave a margin around the cut.
                const double margin = 1e-5 * (1 + std::abs(exact[c]));
                if (exact[c] > cut + margin) {
                    EXPECT_TRUE(is_kept[c]) << i << " " << c;
                } else if (exact[c] < cut - margin) {
                    EXPECT_FALSE(is_kept[c]) << i << " " << c;
                }
            }
            // What is left out is reported, and next to nothing.
            double missed = 0;
            for (int64_t c = 0; c < k; c++) {
                missed += is_kept[c] ? 0 : std::exp2(exact[c] - sorted[0]);
            }
            EXPECT_GE(scanner.row(i).missed, 0.5 * missed - 1e-9);
            EXPECT_LE(scanner.row(i).missed, double(k) * std::exp2(-kKeepBits));
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
        Shapes,
        Scanning,
        testing::Values(
                Shape{1, 3, 1, 1},
                Shape{40, 1, 3, 2},
                Shape{300, 24, 1, 3},
                Shape{300, 24, 100, 1e10},
                Shape{2500, 16, 2, 3}, // several tiles of components
                Shape{200, 900, 1, 2}));

TEST(RowScanner, BoundsNeverFallBelowTheLogit) {
    // Inner products that are off by as much as fp32 may be.
    const int64_t k = 50, d = 300;
    LogitTables tables;
    tables.reset(random_mixture(k, d, 3, 1e4));
    std::mt19937 random(8);
    std::normal_distribution<float> normal;
    for (int trial = 0; trial < 50; trial++) {
        std::vector<float> x(d);
        double norm = 0;
        for (float& v : x) {
            v = 5 * normal(random);
            norm += double(v) * v;
        }
        for (int64_t c = 0; c < k; c++) {
            double product = 0, size = 0;
            for (int64_t j = 0; j < d; j++) {
                product += double(x[j]) * tables.mixture.mean(c)[j];
                size += std::abs(double(x[j]) * tables.mixture.mean(c)[j]);
            }
            const double worst = product - double(d) * 0x1p-24 * size;
            const float bound = tables.slope[c] *
                            (float(worst) - float(tables.half * norm)) +
                    tables.intercept[c];
            EXPECT_GE(bound, exact_logit(tables, c, x.data()));
        }
    }
}

TEST(RowScanner, SkipsTilesOfComponentsWithoutWeight) {
    Mixture mixture = random_mixture(1500, 3, 1, 2);
    std::fill_n(
            mixture.weights.begin(), RowScanner::kTileComponents + 100, 0.0);
    LogitTables tables;
    tables.reset(mixture);
    RowScanner scanner(tables);
    scanner.scan(1, mixture.mean(2), 5);
    EXPECT_GE(scanner.row(0).candidates.size(), 5);
    for (const Candidate& c : scanner.row(0).candidates) {
        EXPECT_GE(c.component, RowScanner::kTileComponents + 100);
    }
}

TEST(RowScanner, RowsBeyondFp32AreComputedExactly) {
    LogitTables tables;
    tables.reset(random_mixture(20, 4, 1, 2));
    std::vector<float> x(8, 0.5f);
    x[5] = 1e25f;
    RowScanner scanner(tables);
    scanner.scan(2, x.data(), 3);
    for (int i = 0; i < 2; i++) {
        EXPECT_GE(scanner.row(i).candidates.size(), 3);
        EXPECT_TRUE(std::isfinite(scanner.row(i).best));
    }
    x[5] = NAN; // nothing to find, and no harm
    scanner.scan(2, x.data(), 3);
    EXPECT_EQ(scanner.row(1).candidates.size(), 0);
    EXPECT_GE(scanner.row(0).candidates.size(), 3);
}

TEST(RowScanner, ExtremeVariancesAreComputedExactly) {
    Mixture m = random_mixture(20, 4, 1, 2);
    m.variances[3] = 1e-30;
    LogitTables tables;
    tables.reset(m);
    EXPECT_TRUE(tables.exact_only);
    RowScanner scanner(tables);
    scanner.scan(1, m.mean(3), 1);
    ASSERT_EQ(scanner.row(0).candidates.size(), 1);
    EXPECT_EQ(scanner.row(0).candidates[0].component, 3);
}

} // namespace
