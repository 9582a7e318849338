#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <faiss_flashgmm/cpu/CpuBackend.h>
#include <faiss_flashgmm/em/EMSolver.h>
#include <faiss_flashgmm/utils/Error.h>

#include "blobs.h"

namespace faiss_flashgmm {

inline EMResult fit(
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

inline std::string message_of(const std::function<void()>& function) {
    try {
        function();
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

inline bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

/// Largest relative difference of two fits.
inline double difference(const Mixture& a, const Mixture& b) {
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

inline void expect_valid(const EMResult& result) {
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

inline Mixture given_start(const std::vector<float>& x, int64_t d, int64_t k) {
    Mixture m(k, d);
    std::copy_n(x.begin(), k * d, m.means.begin());
    m.variances.clear();
    m.weights.clear();
    return m;
}

inline std::vector<int64_t> partition(
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

} // namespace faiss_flashgmm
