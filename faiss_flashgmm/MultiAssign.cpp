#include <faiss_flashgmm/MultiAssign.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/FlashGMMClustering.h>
#include <faiss_flashgmm/cpu/CpuBackend.h>
#include <faiss_flashgmm/residual_policies.h>

namespace faiss_flashgmm {

namespace {

constexpr int kMostEntries = 8;

/// Rows whose candidates are held at once.
constexpr idx_t kBlock = 16384;

/// Rows that the threshold is learned from.
constexpr idx_t kThresholdRows = 65536;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void posterior_lists(
        const Mixture& mixture,
        double tau,
        int width,
        idx_t n,
        const float* x,
        const idx_t* primary,
        idx_t* extra,
        float* scores) {
    // The primary list may be among them.
    const idx_t n_candidates = std::min<idx_t>(width + 1, mixture.k);
    std::vector<idx_t> candidates(n * n_candidates);
    std::vector<float> log_scores(n * n_candidates), log_z(n);
    CpuBackend backend;
    assign_to_mixture(
            backend,
            mixture,
            n,
            x,
            n_candidates,
            candidates.data(),
            log_scores.data(),
            log_z.data());

    // In high dimension responsibilities underflow; their logs do not.
    const double log_tau = std::log(tau);
    for (idx_t i = 0; i < n; i++) {
        if (primary[i] < 0) {
            continue;
        }
        int t = 0;
        for (idx_t j = i * n_candidates; j < (i + 1) * n_candidates; j++) {
            const float log_responsibility = log_scores[j] - log_z[i];
            if (t < width && candidates[j] != primary[i] &&
                log_responsibility > log_tau) {
                extra[i * width + t] = candidates[j];
                scores[i * width + t] = log_responsibility;
                t++;
            }
        }
    }
}

idx_t copies_within(double max_inflation, idx_t n, const idx_t* primary) {
    const idx_t stored = n - std::count(primary, primary + n, idx_t(-1));
    return std::llround((max_inflation - 1) * double(stored));
}

/// The score that about n_copies of the proposed copies exceed, so that with
/// those that equal it there are at least so many; -infinity if all may stay.
float score_to_exceed(std::vector<float> scores, idx_t n_copies) {
    scores.erase(
            std::remove(scores.begin(), scores.end(), -kInfinity),
            scores.end());
    if (n_copies >= idx_t(scores.size())) {
        return -kInfinity;
    }
    std::nth_element(
            scores.begin(),
            scores.begin() + n_copies,
            scores.end(),
            std::greater<float>());
    return scores[n_copies];
}

} // namespace

void MultiAssign::check() const {
    FAISS_THROW_IF_NOT_FMT(
            policy >= AssignPolicy::single && policy <= AssignPolicy::demand,
            "unknown assignment policy %d",
            int(policy));
    FAISS_THROW_IF_NOT_FMT(
            max_entries >= 1 && max_entries <= kMostEntries,
            "max_entries is %d, must be 1 to %d",
            max_entries,
            kMostEntries);
    FAISS_THROW_IF_NOT_FMT(
            max_inflation == 0 ||
                    (max_inflation >= 1 && max_inflation <= kMostEntries),
            "max_inflation is %g, must be 0 or 1 to %d",
            max_inflation,
            kMostEntries);
    FAISS_THROW_IF_NOT_FMT(!std::isnan(tau), "tau is %g", tau);
    FAISS_THROW_IF_NOT_FMT(
            distance_ratio >= 0, // false for NaN
            "distance_ratio is %g, must be >= 0",
            distance_ratio);
    FAISS_THROW_IF_NOT_FMT(
            air_lambda >= 0 && air_lambda <= 1,
            "air_lambda is %g, must be 0 to 1",
            air_lambda);
    FAISS_THROW_IF_NOT_FMT(
            soar_lambda >= 0 && std::isfinite(soar_lambda),
            "soar_lambda is %g, must be finite and >= 0",
            soar_lambda);
    FAISS_THROW_IF_NOT_FMT(
            candidates >= 1, "candidates is %d, must be >= 1", candidates);
    demand_parameters.check();
}

std::string MultiAssign::settings() const {
    const DemandParameters& p = demand_parameters;
    char text[512];
    std::snprintf(
            text,
            sizeof(text),
            "policy %d, %d entries, inflation %.17g, tau %.17g, ratio %.17g, "
            "rng %d, air %.17g %d, soar %.17g, candidates %d, demand %d %.17g "
            "%d %.17g %.17g %d %ld %.17g",
            int(policy),
            max_entries,
            max_inflation,
            tau,
            distance_ratio,
            int(rng_rule),
            air_lambda,
            int(air_relaxed),
            soar_lambda,
            candidates,
            p.neighbors,
            p.recall,
            p.probes,
            p.spread,
            p.price_weight,
            p.reach,
            long(p.surrogates),
            p.query_weight);
    return text;
}

void MultiAssign::check_learned(const faiss::Index& quantizer, bool bulk)
        const {
    check();
    if (!needs_learning(bulk)) {
        return;
    }
    FAISS_THROW_IF_NOT_FMT(
            learned.settings == settings(),
            "the assigner has learned for the settings \"%s\", not for \"%s\": "
            "call train() or learn()",
            learned.settings.c_str(),
            settings().c_str());
    if (policy == AssignPolicy::demand) {
        learned.demand.check_sizes(quantizer, demand_parameters);
    }
}

void MultiAssign::learn(
        const faiss::Index& quantizer,
        const Mixture& mixture,
        idx_t n,
        const float* x,
        idx_t n_queries,
        const float* queries) {
    check();
    FAISS_THROW_IF_NOT_FMT(n > 0, "%ld training vectors", long(n));
    FAISS_THROW_IF_NOT_FMT(
            !queries || n_queries > 0, "%ld sample queries", long(n_queries));
    MultiAssign assigner = *this;
    assigner.learned = {};
    if (policy == AssignPolicy::demand) {
        assigner.learned.demand.learn(
                quantizer, demand_parameters, n, x, n_queries, queries);
    }
    if (max_inflation > 0 && max_lists() > 1) {
        // Evenly spaced rows.
        const idx_t m = std::min(n, kThresholdRows);
        std::vector<float> rows(m * quantizer.d);
        for (idx_t i = 0; i < m; i++) {
            std::copy_n(
                    x + (i * n / m) * quantizer.d,
                    quantizer.d,
                    rows.data() + i * quantizer.d);
        }
        std::vector<idx_t> primary(m), extra(m * (max_lists() - 1));
        std::vector<float> scores(extra.size());
        quantizer.assign(m, rows.data(), primary.data());
        assigner.extra_lists(
                quantizer,
                mixture,
                m,
                rows.data(),
                primary.data(),
                extra.data(),
                scores.data());
        assigner.learned.threshold = score_to_exceed(
                std::move(scores),
                copies_within(max_inflation, m, primary.data()));
    }
    assigner.learned.settings = settings();
    learned = std::move(assigner.learned);
}

void MultiAssign::choose(
        const faiss::Index& quantizer,
        const Mixture& mixture,
        idx_t n,
        const float* x,
        const idx_t* primary,
        bool bulk,
        idx_t* extra) const {
    check_learned(quantizer, bulk);
    const size_t size = size_t(n) * (max_lists() - 1);
    std::vector<float> scores(size);
    extra_lists(quantizer, mixture, n, x, primary, extra, scores.data());
    if (max_inflation == 0) {
        return;
    }
    if (bulk) {
        keep_best(
                max_inflation,
                n,
                primary,
                max_lists() - 1,
                scores.data(),
                extra);
        return;
    }
    for (size_t i = 0; i < size; i++) {
        if (!(scores[i] > learned.threshold)) {
            extra[i] = -1;
        }
    }
}

void keep_best(
        double max_inflation,
        idx_t n,
        const idx_t* primary,
        int width,
        const float* scores,
        idx_t* extra) {
    const size_t size = size_t(n) * width;
    const idx_t n_copies = copies_within(max_inflation, n, primary);
    const float limit = score_to_exceed(
            std::vector<float>(scores, scores + size), n_copies);
    idx_t ties =
            n_copies - std::count_if(scores, scores + size, [&](float score) {
                return score > limit;
            });
    for (size_t i = 0; i < size; i++) {
        if (scores[i] > limit || (scores[i] == limit && ties-- > 0)) {
            continue;
        }
        extra[i] = -1;
    }
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
    const int width = max_lists() - 1;
    const size_t size = size_t(n) * width;
    std::vector<float> unused_scores;
    if (!scores) {
        unused_scores.resize(size);
        scores = unused_scores.data();
    }
    std::fill_n(extra, size, idx_t(-1));
    std::fill_n(scores, size, -kInfinity);
    if (size == 0 || nlist < 2) {
        return;
    }

    if (policy == AssignPolicy::demand) {
        learned.demand.extra_lists(
                quantizer,
                demand_parameters,
                n,
                x,
                primary,
                width,
                extra,
                scores);
        return;
    }
    FAISS_THROW_IF_NOT_FMT(
            !needs_mixture() ||
                    (mixture.k == nlist && mixture.d == quantizer.d),
            "the mixture has %ld components in %ld dimensions, the "
            "quantizer %ld lists in %d",
            long(mixture.k),
            long(mixture.d),
            long(nlist),
            quantizer.d);
    for (idx_t i0 = 0; i0 < n; i0 += kBlock) {
        const idx_t count = std::min(kBlock, n - i0);
        const float* rows = x + i0 * quantizer.d;
        if (policy == AssignPolicy::posterior) {
            posterior_lists(
                    mixture,
                    tau < 0 ? 1.0 / double(nlist) : tau,
                    width,
                    count,
                    rows,
                    primary + i0,
                    extra + i0 * width,
                    scores + i0 * width);
        } else {
            residual_lists(
                    *this,
                    quantizer,
                    count,
                    rows,
                    primary + i0,
                    extra + i0 * width,
                    scores + i0 * width);
        }
    }
}

} // namespace faiss_flashgmm
