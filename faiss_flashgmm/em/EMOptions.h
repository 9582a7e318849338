#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <faiss_flashgmm/em/Mixture.h>

namespace faiss_flashgmm {

/// How the components' variances are tied together.
enum class VarianceModel {
    per_component, ///< one variance a component
    tied,          ///< one variance for all
};

/// How the components' weights are estimated.
enum class WeightModel {
    free,    ///< the share of the rows' mass that a component explains
    uniform, ///< 1 / k
};

/// What a mean is projected to after each M-step.
enum class MeanConstraint {
    none,
    unit,    ///< norm 1 (spherical: inner product and cosine search)
    integer, ///< coordinates rounded to integers, in the user's units
};

/// Where the first means come from when they are not given.
enum class Initialization {
    random_rows, ///< k different rows
    kmeans_pp,   ///< k-means++ seeding on a sample (Arthur & Vassilvitskii)
    lloyd,       ///< random rows, then a short k-means on a sample
};

/// What one EM iteration did. Log-likelihoods are natural logs in the user's
/// units, of the mixture at the start of the iteration.
struct IterationStats {
    int redo = 0;
    int iteration = 0;
    double log_likelihood = 0; ///< mean over the rows (by weight)
    double objective = 0; ///< sum of w |x - mu|^2 to the most responsible mean
    double seconds = 0;   ///< whole iteration
    double seconds_e_step = 0; ///< with the M-step if the backend does it
    double imbalance = 0;      ///< k sum N_k^2 / (sum N_k)^2, 1 is balanced
    int64_t empty = 0;         ///< components under the mass threshold
    int64_t revived = 0;       ///< of these, moved next to a large component
    int64_t at_floor = 0;      ///< components whose variance is at the floor
    double moved_mass = 0;     ///< half the L1 change of the weights
    double dropped_mass = 0;   ///< mean responsibility left out of the M-step
    double pairs_per_row = 0;  ///< components a row that entered the M-step
};

/// Where a running fit is. Given to the progress callback after each chunk.
struct Progress {
    enum class Stage { check_rows, initialize, em };
    Stage stage = Stage::check_rows;
    int redo = 0;
    int nredo = 1;
    int iteration = 0;         ///< of this stage
    int niter = 1;             ///< of this stage
    int64_t rows_done = 0;     ///< in this iteration
    int64_t rows_total = 0;    ///< in this iteration
    double log_likelihood = 0; ///< of the last finished iteration, if any
    double elapsed_seconds = 0;
    double eta_seconds = -1; ///< to the end of the stage; < 0: not known yet
};

struct EMOptions {
    int niter = 25; ///< EM iterations (at most, if tol > 0)
    int nredo = 1;  ///< keep the best of that many runs, by log-likelihood
    /// Stop when an iteration gains less than tol in mean log-likelihood,
    /// relative to max(1, |log-likelihood|). 0: run all iterations.
    double tol = 0;
    uint64_t seed = 1234;

    VarianceModel variance = VarianceModel::per_component;
    WeightModel weights = WeightModel::free;
    MeanConstraint constraint = MeanConstraint::none;
    /// The first so many means, which must be given, stay as they are.
    int64_t frozen_means = 0;

    Initialization init = Initialization::lloyd;
    int init_iterations = 10; ///< k-means iterations of Initialization::lloyd
    /// Rows a component in the sample that initialization works on.
    int64_t init_rows_per_component = 64;

    /// Train on at most that many rows a component, sampled by index; all rows
    /// are still checked. 0: all rows.
    int64_t max_rows_per_component = 0;

    /// Smallest variance, relative to the mean variance of a coordinate.
    double variance_floor = 1e-6;
    /// A component with less mass than this share of the mean is empty.
    double empty_threshold = 1e-3;

    /// Rows read at once; 0 lets the backend choose. Changes no result.
    int64_t chunk_rows = 0;

    /// Called after each chunk, from the calling thread. May throw to stop the
    /// fit: nothing is kept and the exception reaches the caller.
    std::function<void(const Progress&)> progress;

    /// Called after each EM iteration, in the same way.
    std::function<void(const IterationStats&)> on_iteration;

    /// Throws Error naming the first option out of range.
    void check() const;
};

/// A fitted mixture and how it came to be.
struct EMResult {
    Mixture mixture; ///< in the user's units
    /// The change of units that the fit worked in.
    Conditioning conditioning;
    std::vector<IterationStats> iterations; ///< of all redos, in order
    int best_redo = 0;
    bool converged = false; ///< the best redo stopped by tol
    int64_t distinct_means = 0;
    int64_t rows_used = 0; ///< after sampling, over all peers
};

} // namespace faiss_flashgmm
