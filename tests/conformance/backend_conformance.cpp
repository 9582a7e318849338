#include "backend_conformance.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include <faiss_flashgmm/cpu/ReferenceBackend.h>
#include <faiss_flashgmm/utils/half.h>

namespace faiss_flashgmm::conformance {

namespace {

using S = SufficientStats;

/// Magnitudes, in conditioned units, that errors are measured by.
struct Magnitudes {
    double coordinate = 0; ///< largest |x|, for sums that may cancel
    double distance = 0;   ///< largest |x - mu|^2
    double logit = 1;      ///< see Bounds
};

Magnitudes magnitudes(const Problem& p, ReferenceBackend& reference) {
    const int64_t k = p.mixture.k;
    const int64_t d = p.mixture.d;
    const Mixture mixture = p.conditioning.to_conditioned(p.mixture);
    std::vector<float> x(p.x.size());
    p.conditioning.apply(p.n, p.x.data(), x.data());
    std::vector<int64_t> ids(k);
    std::vector<float> scores(k);
    float log_z;
    Magnitudes result;
    for (int64_t i = 0; i < p.n; i++) {
        reference.assign(
                1, p.x.data() + i * d, k, ids.data(), scores.data(), &log_z);
        double norm = 0;
        for (int64_t j = 0; j < d; j++) {
            const double v = x[i * d + j];
            norm += v * v;
            result.coordinate = std::max(result.coordinate, std::abs(v));
        }
        for (int64_t c = 0; c < k && scores[c] > -INFINITY; c++) {
            double distance = 0;
            for (int64_t j = 0; j < d; j++) {
                const double delta = x[i * d + j] - mixture.mean(ids[c])[j];
                distance += delta * delta;
            }
            result.distance = std::max(result.distance, distance);
            if (scores[c] > log_z - 16) {
                result.logit = std::max(
                        result.logit,
                        1 +
                                std::sqrt(norm * distance) /
                                        mixture.variances[ids[c]]);
            }
        }
    }
    return result;
}

} // namespace

SufficientStats statistics_of(
        Backend& backend,
        const Problem& p,
        int64_t chunk) {
    const int64_t d = p.mixture.d;
    backend.begin(p.conditioning.to_conditioned(p.mixture), p.conditioning);
    for (int64_t i = 0; i < p.n; i += chunk) {
        backend.accumulate(
                std::min(chunk, p.n - i),
                p.x.data() + i * d,
                p.weights.empty() ? nullptr : p.weights.data() + i);
    }
    return backend.finish();
}

Problem Case::make(uint64_t seed) const {
    Problem p;
    p.n = n;
    p.mixture = Mixture(k, d);
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    std::uniform_real_distribution<double> uniform(0, 1);
    double total = 0;
    for (int64_t c = 0; c < k; c++) {
        const double s = std::pow(variance_span, uniform(random) - 0.5);
        p.mixture.variances[c] = s * scale * scale;
        p.mixture.weights[c] = 0.1 + uniform(random);
        if (zero_weights && c % 3 == 1) {
            p.mixture.weights[c] = 0;
        }
        total += p.mixture.weights[c];
        for (int64_t j = 0; j < d; j++) {
            // Means at `separation` from one another, whatever d is.
            p.mixture.mean(c)[j] = float(
                    (normal(random) * separation / std::sqrt(2.0 * double(d))) *
                            scale +
                    offset);
        }
    }
    for (double& w : p.mixture.weights) {
        w /= total;
    }
    p.x.resize(n * d);
    for (int64_t i = 0; i < n; i++) {
        const int64_t c = int64_t(random() % uint64_t(k));
        const double sd = std::sqrt(p.mixture.variances[c]);
        for (int64_t j = 0; j < d; j++) {
            p.x[i * d + j] = float(p.mixture.mean(c)[j] + sd * normal(random));
        }
        if (weighted) {
            p.weights.push_back(i % 5 == 0 ? 0 : float(uniform(random)) * 3);
        }
    }
    p.conditioning = Conditioning::from_mixture(p.mixture);
    return p;
}

const std::vector<Case>& cases() {
    static const std::vector<Case> list = [] {
        std::vector<Case> all;
        // Odd shapes.
        for (const int64_t n : {1, 13}) {
            for (const int64_t k : {1, 5, 17}) {
                for (const int64_t d : {1, 3, 100, 1536}) {
                    all.push_back({"odd", n, k, d});
                }
            }
        }
        for (const int64_t d : {1, 3, 100, 1536}) {
            all.push_back({"k_equals_n", 13, 13, d});
            all.push_back({"k_equals_n", 129, 129, d});
        }
        for (const int64_t d :
             {2, 15, 16, 17, 63, 65, 80, 96, 128, 3072, 4096}) {
            all.push_back({"dimension", 200, 33, d});
        }
        all.push_back({"high_dimension", 300, 256, 768, 30, 2});
        all.push_back({"more_components_than_rows", 7, 300, 24});
        all.push_back({"several_component_tiles", 300, 2500, 20});
        all.push_back({"many_rows", 5000, 40, 8});
        all.push_back({"diffuse", 500, 200, 2, 0.3, 1.5});
        all.push_back({"all_alike", 300, 64, 32, 0.0, 1.0});
        all.push_back({"separated", 400, 100, 64, 200, 4});
        all.push_back({"variances_span_1e8", 400, 60, 48, 6, 1e8});
        all.push_back({"weighted", 400, 30, 24, 3, 4, true});
        all.push_back({"zero_weights", 400, 30, 24, 3, 4, false, true});
        all.push_back({"offset_1e4", 300, 20, 16, 8, 4, false, false, 1e4});
        all.push_back(
                {"scale_1e-20", 300, 20, 16, 5, 4, true, false, 0, 1e-20});
        all.push_back({"scale_1e12", 300, 20, 16, 5, 4, false, false, 0, 1e12});
        for (Case& c : all) {
            c.name += "_n" + std::to_string(c.n) + "_k" + std::to_string(c.k) +
                    "_d" + std::to_string(c.d);
            std::replace(c.name.begin(), c.name.end(), '-', 'm');
        }
        return all;
    }();
    return list;
}

void expect_conforms(Backend& backend, const Case& c, const Bounds& bounds) {
    SCOPED_TRACE(c.name);
    const Problem p = c.make(/*seed=*/17);
    const int64_t k = p.mixture.k;
    const int64_t d = p.mixture.d;
    ReferenceBackend reference;

    const SufficientStats expected = statistics_of(reference, p, p.n);
    const SufficientStats actual = statistics_of(backend, p, p.n);
    const double mass = expected.scalar(S::kWeight);
    const auto [largest, farthest, logit_unit] = magnitudes(p, reference);
    const double eps = bounds.statistics;
    EXPECT_EQ(actual.scalar(S::kRows), double(p.n));
    EXPECT_NEAR(actual.scalar(S::kWeight), mass, 1e-9 * mass);
    EXPECT_NEAR(
            actual.scalar(S::kLogLikelihood),
            expected.scalar(S::kLogLikelihood),
            bounds.log_z * mass * logit_unit);
    double total = 0;
    for (int64_t i = 0; i < k; i++) {
        const double dropped = bounds.dropped * mass;
        const double count_error =
                eps * logit_unit * expected.counts()[i] + dropped;
        ASSERT_NEAR(actual.counts()[i], expected.counts()[i], count_error)
                << "component " << i;
        ASSERT_NEAR(
                actual.squared()[i],
                expected.squared()[i],
                eps * logit_unit * expected.squared()[i] + dropped * farthest)
                << "component " << i;
        for (int64_t j = 0; j < d; j++) {
            ASSERT_NEAR(
                    actual.sums()[i * d + j],
                    expected.sums()[i * d + j],
                    count_error * largest)
                    << "component " << i << " column " << j;
        }
        total += actual.counts()[i];
    }
    EXPECT_NEAR(total, mass, 1e-6 * mass);
    EXPECT_LE(
            actual.scalar(S::kDroppedMass), bounds.dropped * double(k) * mass);
    EXPECT_GE(actual.scalar(S::kDroppedMass), 0);

    // assign(): log-scores and ranks, poisoned outputs.
    for (const int64_t m : {int64_t(1), std::min<int64_t>(2, k), k}) {
        std::vector<int64_t> ids(p.n * m, -77), expected_ids(p.n * m);
        std::vector<float> scores(p.n * m, NAN), expected_scores(p.n * m);
        std::vector<float> z(p.n, NAN), expected_z(p.n);
        reference.assign(
                p.n,
                p.x.data(),
                m,
                expected_ids.data(),
                expected_scores.data(),
                expected_z.data());
        backend.assign(p.n, p.x.data(), m, ids.data(), scores.data(), z.data());
        for (int64_t i = 0; i < p.n; i++) {
            ASSERT_NEAR(
                    z[i],
                    expected_z[i],
                    bounds.log_z * (logit_unit + std::abs(expected_z[i])))
                    << "row " << i;
            for (int64_t j = 0; j < m; j++) {
                const float e = expected_scores[i * m + j];
                if (expected_ids[i * m + j] < 0) {
                    ASSERT_EQ(ids[i * m + j], -1) << "row " << i;
                    ASSERT_EQ(scores[i * m + j], -INFINITY) << "row " << i;
                    continue;
                }
                // Scores, not ids: components may tie.
                ASSERT_NEAR(
                        scores[i * m + j],
                        e,
                        bounds.log_z * (logit_unit + 2 * std::abs(e)))
                        << "row " << i << " rank " << j;
                ASSERT_GE(ids[i * m + j], 0);
                ASSERT_LT(ids[i * m + j], k);
            }
            std::vector<int64_t> sorted(
                    ids.begin() + i * m, ids.begin() + (i + 1) * m);
            std::erase(sorted, -1);
            std::sort(sorted.begin(), sorted.end());
            ASSERT_TRUE(
                    std::adjacent_find(sorted.begin(), sorted.end()) ==
                    sorted.end())
                    << "a component twice in row " << i;
        }
    }
}

void expect_chunks_do_not_matter(
        Backend& backend,
        const Case& c,
        double tolerance) {
    SCOPED_TRACE(c.name);
    const Problem p = c.make(/*seed=*/18);
    SufficientStats whole = statistics_of(backend, p, p.n);
    for (const int64_t chunk : {1, 7, 64, 1000}) {
        if (chunk == 1 && p.n > 1000) {
            continue;
        }
        SufficientStats parts = statistics_of(backend, p, chunk);
        // An estimate, which may depend on how a matrix product rounds.
        parts.scalar(S::kDroppedMass) = whole.scalar(S::kDroppedMass);
        for (size_t i = 0; i < whole.flat().size(); i++) {
            ASSERT_NEAR(
                    parts.flat()[i],
                    whole.flat()[i],
                    tolerance * std::abs(whole.flat()[i]))
                    << "chunk " << chunk << " entry " << i;
        }
    }
}

std::vector<std::byte> encode(const std::vector<float>& x, RowType type) {
    std::vector<std::byte> bytes(x.size() * size_of(type));
    for (size_t i = 0; i < x.size(); i++) {
        std::byte* to = bytes.data() + i * size_of(type);
        const auto store = [&](auto value) {
            std::memcpy(to, &value, sizeof(value));
        };
        switch (type) {
            case RowType::float32:
                store(x[i]);
                break;
            case RowType::float16:
                store(float_to_half(x[i]));
                break;
            case RowType::bfloat16:
                store(uint16_t(std::bit_cast<uint32_t>(x[i]) >> 16));
                break;
            case RowType::int8:
                store(int8_t(x[i]));
                break;
            case RowType::uint8:
                store(uint8_t(x[i]));
                break;
        }
    }
    return bytes;
}

Problem whole_numbers(uint64_t seed) {
    Problem p = Case{"whole_numbers", 700, 30, 24, 3, 4, true}.make(seed);
    for (float& v : p.x) {
        v = std::clamp(std::round(60 + 10 * v), 0.0f, 127.0f);
    }
    for (float& v : p.mixture.means) {
        v = 60 + 10 * v;
    }
    for (double& v : p.mixture.variances) {
        v *= 100;
    }
    p.conditioning = Conditioning::from_mixture(p.mixture);
    return p;
}

void expect_row_types_do_not_matter(Backend& backend, double tolerance) {
    const Problem p = whole_numbers(19);
    const int64_t m = 3;
    SufficientStats expected = statistics_of(backend, p, p.n);
    std::vector<int64_t> expected_ids(p.n * m);
    std::vector<float> expected_scores(p.n * m);
    backend.assign(
            p.n,
            p.x.data(),
            m,
            expected_ids.data(),
            expected_scores.data(),
            nullptr);
    for (const RowType type :
         {RowType::float16, RowType::bfloat16, RowType::int8, RowType::uint8}) {
        SCOPED_TRACE(name_of(type));
        const std::vector<std::byte> bytes = encode(p.x, type);
        backend.begin(p.conditioning.to_conditioned(p.mixture), p.conditioning);
        // From the middle of the rows, too.
        const int64_t half = p.n / 2 + 1;
        const RowView x(bytes.data(), type);
        backend.accumulate(half, x, p.weights.data());
        backend.accumulate(
                p.n - half,
                x.from(half * p.mixture.d),
                p.weights.data() + half);
        SufficientStats& actual = backend.finish();
        actual.scalar(S::kDroppedMass) = expected.scalar(S::kDroppedMass);
        for (size_t i = 0; i < expected.flat().size(); i++) {
            ASSERT_NEAR(
                    actual.flat()[i],
                    expected.flat()[i],
                    tolerance * (1 + std::abs(expected.flat()[i])))
                    << "entry " << i;
        }
        std::vector<int64_t> ids(p.n * m, -7);
        std::vector<float> scores(p.n * m, NAN);
        backend.assign(p.n, x, m, ids.data(), scores.data(), nullptr);
        EXPECT_EQ(ids, expected_ids);
        EXPECT_EQ(scores, expected_scores);
    }
}

} // namespace faiss_flashgmm::conformance
