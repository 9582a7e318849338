#include <faiss_flashgmm/em/MStep.h>

#include <algorithm>
#include <cmath>
#include <queue>
#include <utility>
#include <vector>

#include <faiss_flashgmm/utils/Philox.h>

namespace faiss_flashgmm {

namespace {

/// Shift of the two halves of a split component, in standard deviations of a
/// coordinate: enough for EM to tell them apart at once, too little to change
/// the density that they describe together.
constexpr double kSplitShift = 0.25;

/// Moves each empty component next to a large one. Returns how many found a
/// place.
int64_t revive(
        const std::vector<int64_t>& empty,
        std::vector<double>& counts,
        double threshold,
        double floor,
        int64_t frozen,
        uint64_t seed,
        Mixture& mixture) {
    using Donor = std::pair<double, int64_t>; // mass, -component
    std::priority_queue<Donor> donors;
    for (int64_t c = 0; c < mixture.k; c++) {
        // The rows of a component at the floor are all alike: no split helps.
        if (counts[c] > 2 * threshold && mixture.variances[c] > floor) {
            donors.push({counts[c], -c});
        }
    }
    int64_t revived = 0;
    for (const int64_t target : empty) {
        if (target < frozen) {
            continue;
        }
        if (donors.empty()) {
            break;
        }
        const int64_t source = -donors.top().second;
        donors.pop();
        const double shift = kSplitShift * std::sqrt(mixture.variances[source]);
        Philox random(seed, uint64_t(target));
        for (int64_t j = 0; j < mixture.d; j++) {
            const float delta = float(random.next() >> 63 ? shift : -shift);
            mixture.mean(target)[j] = mixture.mean(source)[j] + delta;
            if (source >= frozen) {
                mixture.mean(source)[j] -= delta;
            }
        }
        mixture.variances[target] = mixture.variances[source];
        // The few rows that the empty component had are not lost.
        counts[source] = (counts[source] + counts[target]) / 2;
        counts[target] = counts[source];
        if (counts[source] > 2 * threshold) {
            donors.push({counts[source], -source});
            donors.push({counts[target], -target});
        }
        revived++;
    }
    return revived;
}

} // namespace

void constrain_means(
        MeanConstraint constraint,
        const Conditioning& conditioning,
        int64_t k,
        int64_t d,
        float* means) {
    if (constraint == MeanConstraint::none) {
        return;
    }
    const double scale = conditioning.scale;
#pragma omp parallel for
    for (int64_t c = 0; c < k; c++) {
        float* mean = means + c * d;
        if (constraint == MeanConstraint::unit) {
            double norm = 0;
            for (int64_t j = 0; j < d; j++) {
                norm += double(mean[j]) * mean[j];
            }
            if (norm > 0) {
                const double factor = 1 / (scale * std::sqrt(norm));
                for (int64_t j = 0; j < d; j++) {
                    mean[j] = float(mean[j] * factor);
                }
            }
        } else {
            for (int64_t j = 0; j < d; j++) {
                const double shift = conditioning.shift[j];
                mean[j] = float(
                        (std::round(mean[j] * scale + shift) - shift) / scale);
            }
        }
    }
}

MStepReport maximize(
        const SufficientStats& stats,
        const EMOptions& options,
        const Conditioning& conditioning,
        uint64_t seed,
        Mixture& mixture) {
    const int64_t k = mixture.k;
    const int64_t d = mixture.d;
    std::vector<double> counts(stats.counts().begin(), stats.counts().end());
    double total = 0;
    double squares = 0;
    for (const double count : counts) {
        total += count;
        squares += count * count;
    }
    const double threshold = options.empty_threshold * total / double(k);
    const double floor = options.variance_floor * conditioning.global_variance;

    MStepReport report;
    report.imbalance = double(k) * squares / (total * total);

    // The squared distance that is left about the new means, by component.
    std::vector<double> residual(k, 0.0);
#pragma omp parallel for
    for (int64_t c = 0; c < k; c++) {
        const double count = counts[c];
        if (count <= threshold) {
            continue;
        }
        residual[c] = stats.squared()[c];
        if (c < options.frozen_means) {
            continue;
        }
        const double* sums = stats.sums().data() + c * d;
        float* mean = mixture.mean(c);
        double moved = 0; // from the old mean to the mean of the rows
        std::vector<float> updated(d);
        for (int64_t j = 0; j < d; j++) {
            const double exact = sums[j] / count;
            moved += (exact - mean[j]) * (exact - mean[j]);
            updated[j] = float(exact);
        }
        constrain_means(options.constraint, conditioning, 1, d, updated.data());
        double off = 0; // from the mean of the rows to the mean that is kept
        for (int64_t j = 0; j < d; j++) {
            const double delta = sums[j] / count - updated[j];
            off += delta * delta;
        }
        std::copy(updated.begin(), updated.end(), mean);
        residual[c] += count * (off - moved);
    }

    std::vector<int64_t> empty;
    double tied = 0;
    double occupied = 0;
    for (int64_t c = 0; c < k; c++) {
        if (counts[c] <= threshold) {
            empty.push_back(c);
        } else {
            tied += residual[c];
            occupied += counts[c];
        }
    }
    tied = std::max(floor, tied / (double(d) * occupied));
    for (int64_t c = 0; c < k; c++) {
        if (options.variance == VarianceModel::tied) {
            mixture.variances[c] = tied;
        } else if (counts[c] > threshold) {
            mixture.variances[c] =
                    std::max(floor, residual[c] / (double(d) * counts[c]));
        }
        report.at_floor += mixture.variances[c] <= floor;
    }

    report.empty = int64_t(empty.size());
    report.revived =
            revive(empty,
                   counts,
                   threshold,
                   floor,
                   options.frozen_means,
                   seed,
                   mixture);
    if (report.revived > 0) {
        constrain_means(
                options.constraint,
                conditioning,
                k - options.frozen_means,
                d,
                mixture.mean(options.frozen_means));
    }

    for (int64_t c = 0; c < k; c++) {
        const double weight = options.weights == WeightModel::uniform
                ? 1 / double(k)
                : counts[c] / total;
        report.moved_mass += 0.5 * std::abs(weight - mixture.weights[c]);
        mixture.weights[c] = weight;
    }
    return report;
}

} // namespace faiss_flashgmm
