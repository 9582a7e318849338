#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace faiss_flashgmm {

/// n rows around `centers` random centers, in round robin; row i belongs to
/// center i % centers.
inline std::vector<float> make_blobs(
        int64_t n,
        int64_t d,
        int64_t centers,
        double separation,
        uint64_t seed = 1) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    std::vector<double> means(centers * d);
    for (double& v : means) {
        v = separation * normal(random);
    }
    std::vector<float> x(n * d);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < d; j++) {
            x[i * d + j] = float(means[(i % centers) * d + j] + normal(random));
        }
    }
    return x;
}

} // namespace faiss_flashgmm
