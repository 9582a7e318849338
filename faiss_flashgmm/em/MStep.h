#pragma once

#include <cstdint>

#include <faiss_flashgmm/em/EMOptions.h>
#include <faiss_flashgmm/em/Mixture.h>
#include <faiss_flashgmm/em/SufficientStats.h>

namespace faiss_flashgmm {

/// What a maximization did; see IterationStats.
struct MStepReport {
    int64_t empty = 0;
    int64_t revived = 0;
    int64_t at_floor = 0;
    double moved_mass = 0;
    double imbalance = 1;
};

/** Replaces the mixture by the one that maximizes the expected
 * log-likelihood:
 *
 *     mu_k' = M_k / N_k
 *     s_k'  = Q_k / (d N_k) - |mu_k' - mu_k|^2 / d
 *     pi_k' = N_k / sum N
 *
 * with Q_k taken about the old mean mu_k, so that s_k' is the variance about
 * the new one. (The paper's equation 20 leaves the last term out; with it the
 * step is exact EM and the likelihood never falls.) Tied variances, uniform
 * weights and constrained means maximize under their constraint.
 *
 * An empty component is moved next to the component of largest mass, which it
 * shares; it stays where it is if there is none worth splitting.
 *
 * @param mixture   in and out, conditioned units
 * @param seed      of the perturbation of revived components
 */
MStepReport maximize(
        const SufficientStats& stats,
        const EMOptions& options,
        const Conditioning& conditioning,
        uint64_t seed,
        Mixture& mixture);

/// Projects means in conditioned units as the constraint says. A mean that
/// cannot be scaled to norm 1 (zero) is left as it is.
void constrain_means(
        MeanConstraint constraint,
        const Conditioning& conditioning,
        int64_t k,
        int64_t d,
        float* means);

} // namespace faiss_flashgmm
