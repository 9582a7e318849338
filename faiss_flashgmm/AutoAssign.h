#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <faiss/IndexIVF.h>

#include <faiss_flashgmm/FlashGMMClustering.h>
#include <faiss_flashgmm/MultiAssign.h>
#include <faiss_flashgmm/compat.h>

namespace faiss_flashgmm {

/// What auto_assign() aims at and how much work it may do.
struct AutoAssignOptions {
    double recall = 0.95;       ///< to scan least for, in (0, 1]
    int k = 10;                 ///< nearest neighbors that are to be found
    double max_inflation = 1.5; ///< the most stored entries a vector
    int max_entries = 3;        ///< the most lists a vector is stored in

    /// Rows that the trials fit and store; with fewer than there are, lists
    /// are tried in proportion. All trials together cost about as much as 5
    /// trainings and 15 adds of so many rows.
    idx_t max_rows = 50000;
    /// Rows set aside as queries where no queries are given.
    idx_t held_out = 1000;
    /// After so many seconds no further centroids are tried. 0: no limit,
    /// which makes the choice the same from run to run.
    double max_seconds = 0;

    /// Throws faiss::FaissException naming the first field out of range.
    void check() const;
};

/// One way to place centroids and vectors, and what it costs.
struct AssignTrial {
    bool kmeans_centroids = false;
    VarianceModel variance = VarianceModel::tied;
    WeightModel weights = WeightModel::uniform;
    MultiAssign assigner; ///< without what it learned

    double entries_per_vector = 0;
    double scanned = 0;   ///< entries a query for the recall; infinity: missed
    double nprobe = 0;    ///< for the recall
    double scan_gain = 0; ///< scanned by k-means with one list, over `scanned`

    /// Such as "tied, uniform: demand 1.5, 2 entries".
    std::string name() const;
};

struct AutoAssignResult {
    std::vector<AssignTrial> trials; ///< in the order they were made
    size_t best = 0;                 ///< the one chosen
    idx_t rows = 0;                  ///< that were fitted and stored
    idx_t nlist = 0;                 ///< lists that they were stored in

    /// The trials as a table, a line each, the best one marked.
    std::string table() const;
};

/** Tries centroids (k-means, and mixtures of two kinds) with several policies
 * on a sample, and sets the index to what scans least for the wanted recall.
 * Call train() afterwards.
 *
 * @param index     of a multi-assign type, empty. Its assigner keeps the
 *                  details of the policies; kmeans_centroids, gmm.variance,
 *                  gmm.weights and the policy with its limits are set. If it
 *                  holds trained centroids, only policies are tried, on them.
 * @param x         rows, size n * d: what the index will hold, or a sample
 * @param queries   size n_queries * d, real ones. null: rows held out
 */
AutoAssignResult auto_assign(
        faiss::IndexIVF& index,
        idx_t n,
        const float* x,
        const AutoAssignOptions& options = {},
        idx_t n_queries = 0,
        const float* queries = nullptr);

} // namespace faiss_flashgmm
