#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include <faiss_flashgmm/em/EMOptions.h>
#include <faiss_flashgmm/em/MStep.h>
#include <faiss_flashgmm/em/Mixture.h>
#include <faiss_flashgmm/em/Rows.h>
#include <faiss_flashgmm/em/SufficientStats.h>

namespace faiss_flashgmm {

class RowMoments;
class RowSource;

/** The arithmetic of the E-step on some device.
 *
 * Use: begin(mixture), then any number of add_rows() and assign(), then
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

    /** @name A fit
     *
     * Between begin_fit() and end_fit() chunks with the same non-negative
     * RowKey are the same rows each time. A backend with memory of its own
     * keeps them if there is room: once has_rows() says so, Rows with that key
     * need neither be read nor have a pointer.
     *
     * @param n     rows that will be trained on
     */
    ///@{
    virtual void begin_fit(int64_t /*n*/, int64_t /*k*/, int64_t /*d*/) {}
    virtual void end_fit() {}
    virtual bool has_rows(const RowKey&) const {
        return false;
    }
    /// The rows of a source will not come again.
    virtual void forget_rows(int64_t /*source*/) {}

    /** Adds rows to their moments and checks them: RowMoments::add(), where
     * the rows are.
     */
    virtual std::string add_moments(
            int64_t first,
            const Rows& rows,
            RowMoments& moments);

    /// k-means++ seeding: em/Initialization.h, where the arithmetic is.
    virtual void draw_kmeans_pp(
            RowSource& rows,
            int64_t first,
            int64_t k,
            uint64_t seed,
            float* means,
            const std::function<void(int64_t)>& on_mean);
    ///@}

    /** Starts an iteration: folds the per-component constants and clears the
     * statistics.
     *
     * @param mixture   in conditioned units; copied
     */
    virtual void begin(
            const Mixture& mixture,
            const Conditioning& conditioning) = 0;

    /// Adds rows, in the user's units, to the statistics. Weights are >= 0.
    virtual void add_rows(const Rows& rows) = 0;

    void accumulate(int64_t n, RowView x, const float* weights) {
        add_rows({n, x, weights});
    }

    /// The statistics of all rows since begin(). Valid until the next begin().
    virtual SufficientStats& finish() = 0;

    using Sums = std::array<double, SufficientStats::kNumScalars>;

    /** In place of finish(), for backends that can maximize where the
     * statistics are: the M-step (MStep.h), and begin() with its result.
     *
     * @param sums      output: what is not per component
     * @return          false: nothing has happened. So by default, and where
     *                  empty components have to be moved.
     */
    virtual bool advance(
            const EMOptions& /*options*/,
            Sums& /*sums*/,
            MStepReport& /*report*/) {
        return false;
    }
    /// After advance(): the mixture that the present iteration works with.
    virtual void read_mixture(Mixture& /*mixture*/) {}

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
            RowView x,
            int64_t m,
            int64_t* components,
            float* log_scores,
            float* log_z) = 0;
};

} // namespace faiss_flashgmm
