#include <faiss_flashgmm/cpu/ReferenceBackend.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

void ReferenceBackend::begin(
        const Mixture& mixture,
        const Conditioning& conditioning) {
    mixture.check();
    mixture_ = mixture;
    conditioning_ = conditioning;
    stats_ = SufficientStats(mixture.k, mixture.d);
    row_.resize(mixture.d);
    distances_.resize(mixture.k);
    scores_.resize(mixture.k);
}

double ReferenceBackend::score(const float* x) {
    const int64_t d = mixture_.d;
    for (int64_t j = 0; j < d; j++) {
        row_[j] = (double(x[j]) - conditioning_.shift[j]) / conditioning_.scale;
    }
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < mixture_.k; i++) {
        double distance = 0;
        for (int64_t j = 0; j < d; j++) {
            const double delta = row_[j] - mixture_.mean(i)[j];
            distance += delta * delta;
        }
        const double s = mixture_.variances[i];
        distances_[i] = distance;
        scores_[i] = std::log(mixture_.weights[i]) -
                0.5 * double(d) * std::log(2 * std::numbers::pi * s) -
                distance / (2 * s);
        largest = std::max(largest, scores_[i]);
    }
    double sum = 0;
    for (double score : scores_) {
        sum += std::exp(score - largest);
    }
    return largest + std::log(sum);
}

void ReferenceBackend::add_rows(const Rows& rows) {
    const int64_t d = mixture_.d;
    using S = SufficientStats;
    std::vector<float> x(d);
    for (int64_t i = 0; i < rows.n; i++) {
        const double w = rows.weights ? rows.weights[i] : 1;
        stats_.scalar(S::kRows) += 1;
        if (w == 0) {
            continue;
        }
        to_floats(rows.x.from(i * d), d, x.data());
        const double log_z = score(x.data());
        for (int64_t c = 0; c < mixture_.k; c++) {
            const double mass = w * std::exp(scores_[c] - log_z);
            stats_.counts()[c] += mass;
            stats_.squared()[c] += mass * distances_[c];
            double* sums = stats_.sums().data() + c * d;
            for (int64_t j = 0; j < d; j++) {
                sums[j] += mass * row_[j];
            }
        }
        const auto best = std::max_element(scores_.begin(), scores_.end());
        stats_.scalar(S::kWeight) += w;
        stats_.scalar(S::kLogLikelihood) += w * log_z;
        stats_.scalar(S::kObjective) += w * distances_[best - scores_.begin()];
        stats_.scalar(S::kPairs) += double(mixture_.k);
    }
}

void ReferenceBackend::assign(
        int64_t n,
        RowView x,
        int64_t m,
        int64_t* components,
        float* log_scores,
        float* log_z) {
    FLASHGMM_THROW_IF_NOT_FMT(
            m >= 1 && m <= mixture_.k,
            "m = %ld must lie in [1, k = %ld]",
            long(m),
            long(mixture_.k));
    const double offset = conditioning_.log_density_offset();
    const int64_t d = mixture_.d;
    std::vector<int64_t> order(mixture_.k);
    std::vector<float> row(d);
    for (int64_t i = 0; i < n; i++) {
        to_floats(x.from(i * d), d, row.data());
        const double z = score(row.data());
        std::iota(order.begin(), order.end(), 0);
        std::partial_sort(
                order.begin(),
                order.begin() + m,
                order.end(),
                [&](int64_t a, int64_t b) {
                    return scores_[a] > scores_[b] ||
                            (scores_[a] == scores_[b] && a < b);
                });
        for (int64_t j = 0; j < m; j++) {
            const double s = scores_[order[j]];
            components[i * m + j] = std::isinf(s) ? -1 : order[j];
            log_scores[i * m + j] = float(s + offset);
        }
        if (log_z) {
            log_z[i] = float(z + offset);
        }
    }
}

} // namespace faiss_flashgmm
