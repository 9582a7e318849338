#include <faiss_flashgmm/residual_policies.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <faiss_flashgmm/utils/ParallelGuard.h>

namespace faiss_flashgmm {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// In sums that do not wait for each other.
double dot(const double* x, const double* y, size_t d) {
    const double* const end = x + d;
    double sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
    for (; end - x >= 4; x += 4, y += 4) {
        sum0 += x[0] * y[0];
        sum1 += x[1] * y[1];
        sum2 += x[2] * y[2];
        sum3 += x[3] * y[3];
    }
    for (; x != end; x++, y++) {
        sum0 += *x * *y;
    }
    return (sum0 + sum1) + (sum2 + sum3);
}

/// One row, its candidate lists and those it is in.
class RowLists {
   public:
    RowLists(
            const MultiAssign& assigner,
            const faiss::Index& quantizer,
            int n_candidates)
            : assigner_(assigner),
              quantizer_(quantizer),
              d_(quantizer.d),
              n_candidates_(n_candidates),
              centroid_(d_),
              residuals_((n_candidates + 1) * d_) {}

    /// @param candidates   n_candidates of them
    /// @param extra        output, max_lists() - 1 of them, with scores
    void choose(
            const float* x,
            idx_t primary,
            const idx_t* candidates,
            idx_t* extra,
            float* scores) {
        kept_.assign(1, candidate(x, primary, residuals_.data()));
        candidates_.clear();
        for (int j = 0; j < n_candidates_; j++) {
            if (candidates[j] >= 0 && candidates[j] != primary) {
                candidates_.push_back(candidate(
                        x, candidates[j], residuals_.data() + (j + 1) * d_));
            }
        }
        float last = std::numeric_limits<float>::infinity();
        for (int t = 0; t < assigner_.max_lists() - 1; t++) {
            const int best = best_candidate();
            if (best < 0) {
                break;
            }
            Candidate& chosen = candidates_[best];
            last = std::min(last, score(chosen));
            extra[t] = chosen.list;
            scores[t] = last;
            kept_.push_back(chosen);
            chosen.list = -1;
        }
    }

   private:
    struct Candidate {
        idx_t list;
        const double* residual;
        double norm; ///< of the residual, squared
    };

    Candidate candidate(const float* x, idx_t list, double* residual) {
        quantizer_.reconstruct(list, centroid_.data());
        for (size_t j = 0; j < d_; j++) {
            residual[j] = double(x[j]) - centroid_[j];
        }
        return {list, residual, dot(residual, residual, d_)};
    }

    /// What is minimized; infinity: not to be stored.
    double loss(const Candidate& candidate) const {
        const double primary_norm = kept_[0].norm;
        if (primary_norm == 0) {
            return kInfinity; // the row is its centroid
        }
        double sum = candidate.norm;
        switch (assigner_.policy) {
            case AssignPolicy::air:
                for (const Candidate& kept : kept_) {
                    sum += assigner_.air_lambda *
                            dot(kept.residual, candidate.residual, d_);
                }
                return assigner_.air_relaxed &&
                                sum >= (1 + assigner_.air_lambda) * primary_norm
                        ? kInfinity
                        : sum;
            case AssignPolicy::soar:
                for (const Candidate& kept : kept_) {
                    const double product =
                            dot(kept.residual, candidate.residual, d_);
                    sum += kept.norm > 0 ? assigner_.soar_lambda * product *
                                    product / kept.norm
                                         : 0;
                }
                return sum;
            default:
                return assigner_.distance_ratio > 0 &&
                                std::sqrt(candidate.norm) >
                                        assigner_.distance_ratio *
                                                std::sqrt(primary_norm)
                        ? kInfinity
                        : candidate.norm;
        }
    }

    /// Whether a list that is kept has its centroid nearer to the candidate's
    /// than the row is.
    bool shadowed(const Candidate& candidate) const {
        for (const Candidate& kept : kept_) {
            double between = 0;
            for (size_t j = 0; j < d_; j++) {
                const double difference =
                        candidate.residual[j] - kept.residual[j];
                between += difference * difference;
            }
            if (between < candidate.norm) {
                return true;
            }
        }
        return false;
    }

    /// For nearest the first in the probing order, else that of least loss.
    int best_candidate() const {
        const bool nearest = assigner_.policy == AssignPolicy::nearest;
        int best = -1;
        double best_loss = kInfinity;
        for (size_t j = 0; j < candidates_.size(); j++) {
            const Candidate& candidate = candidates_[j];
            if (candidate.list < 0 ||
                (nearest && assigner_.rng_rule && shadowed(candidate))) {
                continue;
            }
            const double its_loss = loss(candidate);
            if (its_loss < best_loss) {
                best = int(j);
                best_loss = nearest ? -kInfinity : its_loss;
            }
        }
        return best;
    }

    float score(const Candidate& candidate) const {
        const double primary_norm = kept_[0].norm;
        return assigner_.policy == AssignPolicy::nearest
                ? float(0.5 * std::log(primary_norm / candidate.norm))
                : float(-loss(candidate) / primary_norm);
    }

    const MultiAssign& assigner_;
    const faiss::Index& quantizer_;
    const size_t d_;
    const int n_candidates_;
    std::vector<float> centroid_;
    std::vector<double> residuals_; ///< to the primary, then each candidate
    std::vector<Candidate> kept_;   ///< the primary first
    std::vector<Candidate> candidates_;
};

} // namespace

void residual_lists(
        const MultiAssign& assigner,
        const faiss::Index& quantizer,
        idx_t n,
        const float* x,
        const idx_t* primary,
        idx_t* extra,
        float* scores) {
    const int width = assigner.max_lists() - 1;
    // The primary list may be among them.
    const bool only_nearest =
            assigner.policy == AssignPolicy::nearest && !assigner.rng_rule;
    const idx_t n_candidates = std::min<idx_t>(
            quantizer.ntotal,
            only_nearest ? width + 1
                         : std::max(assigner.candidates, width) + 1);
    std::vector<idx_t> candidates(n * n_candidates);
    std::vector<float> distances(n * n_candidates);
    quantizer.search(n, x, n_candidates, distances.data(), candidates.data());

    ParallelGuard guard;
#pragma omp parallel
    {
        RowLists row(assigner, quantizer, int(n_candidates));
#pragma omp for
        for (idx_t i = 0; i < n; i++) {
            if (primary[i] < 0) {
                continue;
            }
            guard.run([&] {
                row.choose(
                        x + i * quantizer.d,
                        primary[i],
                        candidates.data() + i * n_candidates,
                        extra + i * width,
                        scores + i * width);
            });
        }
    }
    guard.rethrow();
}

} // namespace faiss_flashgmm
