#include <faiss_flashgmm/MultiAssign.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/FlashGMMClustering.h>
#include <faiss_flashgmm/cpu/CpuBackend.h>

namespace faiss_flashgmm {

namespace {

/// Candidates asked for: the primary list may be one of them.
constexpr idx_t kCandidates = 2;

/// The better of a row's two candidates that is not its primary list.
int second_candidate(const idx_t* candidates, idx_t primary) {
    return candidates[0] == primary ? 1 : 0;
}

void posterior_lists(
        const Mixture& mixture,
        double tau,
        idx_t n,
        const float* x,
        const idx_t* primary,
        idx_t* extra,
        float* scores) {
    std::vector<idx_t> candidates(n * kCandidates);
    std::vector<float> log_scores(n * kCandidates), log_z(n);
    CpuBackend backend;
    assign_to_mixture(
            backend,
            mixture,
            n,
            x,
            kCandidates,
            candidates.data(),
            log_scores.data(),
            log_z.data());

    // In high dimension responsibilities underflow; their logs do not.
    const double log_tau = std::log(tau);
    for (idx_t i = 0; i < n; i++) {
        const idx_t* row = candidates.data() + i * kCandidates;
        const int j = second_candidate(row, primary[i]);
        const float log_responsibility =
                log_scores[i * kCandidates + j] - log_z[i];
        if (primary[i] >= 0 && log_responsibility > log_tau) {
            extra[i] = row[j];
            scores[i] = log_responsibility;
        }
    }
}

void nearest_lists(
        const faiss::Index& quantizer,
        double distance_ratio,
        idx_t n,
        const float* x,
        const idx_t* primary,
        idx_t* extra,
        float* scores) {
    std::vector<idx_t> candidates(n * kCandidates);
    std::vector<float> quantizer_distances(n * kCandidates);
    quantizer.search(
            n, x, kCandidates, quantizer_distances.data(), candidates.data());

    // The quantizer's distances may be inner products, or expansions that
    // cancel near a centroid.
    const size_t d = quantizer.d;
    std::vector<float> centroid(d);
    auto distance = [&](const float* row, idx_t list) {
        quantizer.reconstruct(list, centroid.data());
        double sum = 0;
        for (size_t j = 0; j < d; j++) {
            const double difference = double(row[j]) - centroid[j];
            sum += difference * difference;
        }
        return std::sqrt(sum);
    };

    for (idx_t i = 0; i < n; i++) {
        const idx_t* row = candidates.data() + i * kCandidates;
        const idx_t second = row[second_candidate(row, primary[i])];
        if (primary[i] < 0 || second < 0) {
            continue;
        }
        const double d1 = distance(x + i * d, primary[i]);
        const double d2 = distance(x + i * d, second);
        if (distance_ratio == 0 || d2 <= distance_ratio * d1) {
            extra[i] = second;
            scores[i] = d2 > 0 ? float(std::log(d1 / d2)) : 0.f;
        }
    }
}

} // namespace

void MultiAssign::check() const {
    FAISS_THROW_IF_NOT_FMT(
            policy == AssignPolicy::single ||
                    policy == AssignPolicy::posterior ||
                    policy == AssignPolicy::nearest,
            "unknown assignment policy %d",
            int(policy));
    FAISS_THROW_IF_NOT_FMT(!std::isnan(tau), "tau is %g", tau);
    FAISS_THROW_IF_NOT_FMT(
            distance_ratio >= 0, // false for NaN
            "distance_ratio is %g, must be >= 0",
            distance_ratio);
}

void MultiAssign::extra_lists(
        const faiss::Index& quantizer,
        const Mixture& mixture,
        idx_t n,
        const float* x,
        const idx_t* primary,
        idx_t* extra,
        float* scores) const {
    check();
    const idx_t nlist = quantizer.ntotal;
    const size_t size = size_t(n) * (max_lists() - 1);
    std::vector<float> unused_scores;
    if (!scores) {
        unused_scores.resize(size);
        scores = unused_scores.data();
    }
    std::fill_n(extra, size, idx_t(-1));
    std::fill_n(scores, size, -std::numeric_limits<float>::infinity());
    if (size == 0 || nlist < 2) {
        return;
    }

    if (policy == AssignPolicy::posterior) {
        FAISS_THROW_IF_NOT_FMT(
                mixture.k == nlist && mixture.d == quantizer.d,
                "the mixture has %ld components in %ld dimensions, the "
                "quantizer %ld lists in %d",
                long(mixture.k),
                long(mixture.d),
                long(nlist),
                quantizer.d);
        posterior_lists(
                mixture,
                tau < 0 ? 1.0 / double(nlist) : tau,
                n,
                x,
                primary,
                extra,
                scores);
    } else {
        nearest_lists(quantizer, distance_ratio, n, x, primary, extra, scores);
    }
}

} // namespace faiss_flashgmm
