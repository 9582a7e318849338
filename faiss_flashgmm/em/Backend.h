#pragma once

#include <cstdint>

#include <faiss_flashgmm/em/Mixture.h>
#include <faiss_flashgmm/em/SufficientStats.h>

namespace faiss_flashgmm {

/** The arithmetic of the E-step on some device.
 *
 * Use: begin(mixture), then any number of accumulate() and assign(), then
 * finish(). Rows come in the user's units and are conditioned on the way in;
 * the mixture and the statistics are in conditioned units. Rows must be
 * finite (EMSolver checks them).
 *
 * Memory is O(k d + chunk): no implementation holds the n x k
 * responsibilities.
 */
class Backend {
   public:
    virtual ~Backend() = default;

    virtual const char* name() const = 0;

    /// Rows to pass to accumulate() at once so that a call takes well under a
    /// second; a caller may pass more or fewer.
    virtual int64_t preferred_chunk(int64_t k, int64_t d) const = 0;

    /** Starts an iteration: folds the per-component constants and clears the
     * statistics.
     *
     * @param mixture   in conditioned units; copied
     */
    virtual void begin(
            const Mixture& mixture,
            const Conditioning& conditioning) = 0;

    /** Adds rows to the statistics.
     *
     * @param x         rows, size n * d, user's units
     * @param weights   size n, >= 0, or null: all 1
     */
    virtual void accumulate(
            int64_t n,
            const float* x,
            const float* weights) = 0;

    /// The statistics of all rows since begin(). Valid until the next begin().
    virtual SufficientStats& finish() = 0;

    /** The m most responsible components of each row, best first, under the
     * mixture of the last begin(). Ties go to the lower component.
     *
     * Ranks by log-score, so the order is right even where responsibilities
     * underflow. The responsibility of a component is
     * exp(log_score - log_z).
     *
     * Components of weight zero are never returned: where fewer than m are
     * left, -1 with log-score -infinity pads the row.
     *
     * @param m             components a row, 1 <= m <= k
     * @param components    output, size n * m
     * @param log_scores    output, size n * m: log pi_k N(x; mu_k, s_k),
     *                      natural log, user's units
     * @param log_z         output, size n, or null: log-density of the row
     */
    virtual void assign(
            int64_t n,
            const float* x,
            int64_t m,
            int64_t* components,
            float* log_scores,
            float* log_z) = 0;
};

} // namespace faiss_flashgmm
