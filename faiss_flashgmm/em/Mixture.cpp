#include <faiss_flashgmm/em/Mixture.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/memory.h>

namespace faiss_flashgmm {

Mixture::Mixture(int64_t k, int64_t d) : k(k), d(d) {
    FLASHGMM_THROW_IF_NOT_FMT(k >= 1, "k = %ld must be at least 1", long(k));
    FLASHGMM_THROW_IF_NOT_FMT(d >= 1, "d = %ld must be at least 1", long(d));
    resize_or_throw(means, uint64_t(k) * d, "the means of the mixture");
    variances.assign(k, 1.0);
    weights.assign(k, 1.0 / double(k));
}

void Mixture::check() const {
    FLASHGMM_THROW_IF_NOT_FMT(
            k >= 1 && d >= 1,
            "mixture of %ld components in dimension %ld",
            long(k),
            long(d));
    FLASHGMM_THROW_IF_NOT_FMT(
            means.size() == size_t(k) * d && variances.size() == size_t(k) &&
                    weights.size() == size_t(k),
            "mixture with k = %ld, d = %ld holds %zu means, %zu variances, "
            "%zu weights",
            long(k),
            long(d),
            means.size(),
            variances.size(),
            weights.size());
    double total = 0;
    for (int64_t i = 0; i < k; i++) {
        for (int64_t j = 0; j < d; j++) {
            FLASHGMM_THROW_IF_NOT_FMT(
                    std::isfinite(mean(i)[j]),
                    "mean %ld has %g in column %ld",
                    long(i),
                    double(mean(i)[j]),
                    long(j));
        }
        FLASHGMM_THROW_IF_NOT_FMT(
                std::isfinite(variances[i]) && variances[i] > 0,
                "variance %ld is %g",
                long(i),
                variances[i]);
        FLASHGMM_THROW_IF_NOT_FMT(
                std::isfinite(weights[i]) && weights[i] >= 0,
                "weight %ld is %g",
                long(i),
                weights[i]);
        total += weights[i];
    }
    FLASHGMM_THROW_IF_NOT_FMT(
            std::abs(total - 1) < 1e-6, "the weights sum to %.9g", total);
}

int64_t Mixture::distinct_means() const {
    std::vector<int64_t> order(k);
    std::iota(order.begin(), order.end(), 0);
    const size_t bytes = size_t(d) * sizeof(float);
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return std::memcmp(mean(a), mean(b), bytes) < 0;
    });
    int64_t distinct = k > 0 ? 1 : 0;
    for (int64_t i = 1; i < k; i++) {
        distinct += std::memcmp(mean(order[i - 1]), mean(order[i]), bytes) != 0;
    }
    return distinct;
}

Conditioning Conditioning::identity(int64_t d) {
    Conditioning c;
    c.shift.assign(d, 0.0f);
    return c;
}

Conditioning Conditioning::from_moments(
        const std::vector<double>& mean,
        double variance,
        bool center) {
    const size_t d = mean.size();
    Conditioning c = identity(int64_t(d));
    double magnitude = 0; // mean square of the coordinates of the mean
    for (size_t j = 0; j < d; j++) {
        magnitude += mean[j] * mean[j] / double(d);
        if (center) {
            c.shift[j] = float(mean[j]);
        }
    }
    // Differences below the rounding of the rows carry no information: the
    // scale of constant rows is that of their rounding.
    const double spread = std::sqrt(std::max(variance, magnitude * 0x1p-48));
    if (spread > 0) {
        c.scale = std::exp2(std::round(std::log2(spread)));
    }
    c.global_variance = spread > 0 ? spread * spread / (c.scale * c.scale) : 1;
    return c;
}

Conditioning Conditioning::from_mixture(const Mixture& mixture) {
    std::vector<double> mean(mixture.d, 0.0);
    double variance = 0;
    for (int64_t i = 0; i < mixture.k; i++) {
        variance += mixture.weights[i] * mixture.variances[i];
        for (int64_t j = 0; j < mixture.d; j++) {
            mean[j] += mixture.weights[i] * mixture.mean(i)[j];
        }
    }
    double between = 0;
    for (int64_t i = 0; i < mixture.k; i++) {
        double sum = 0;
        for (int64_t j = 0; j < mixture.d; j++) {
            const double delta = mixture.mean(i)[j] - mean[j];
            sum += delta * delta;
        }
        between += mixture.weights[i] * sum;
    }
    variance += between / double(mixture.d);
    return from_moments(mean, variance, true);
}

void Conditioning::apply(int64_t n, const float* x, float* out) const {
    const int64_t d = int64_t(shift.size());
    const double inverse = 1 / scale;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < d; j++) {
            out[i * d + j] =
                    float((double(x[i * d + j]) - double(shift[j])) * inverse);
        }
    }
}

Mixture Conditioning::to_conditioned(const Mixture& user) const {
    Mixture result = user;
    apply(user.k, user.means.data(), result.means.data());
    for (double& variance : result.variances) {
        variance /= scale * scale;
    }
    return result;
}

Mixture Conditioning::to_user(const Mixture& conditioned) const {
    Mixture result = conditioned;
    for (int64_t i = 0; i < result.k; i++) {
        float* mean = result.mean(i);
        for (int64_t j = 0; j < result.d; j++) {
            mean[j] = float(double(mean[j]) * scale + double(shift[j]));
        }
    }
    for (double& variance : result.variances) {
        variance *= scale * scale;
    }
    return result;
}

double Conditioning::log_density_offset() const {
    return -double(shift.size()) * std::log(scale);
}

} // namespace faiss_flashgmm
