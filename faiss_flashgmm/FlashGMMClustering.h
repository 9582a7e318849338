#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <faiss/Clustering.h>

#include <faiss_flashgmm/compat.h>
#include <faiss_flashgmm/em/Backend.h>
#include <faiss_flashgmm/em/EMOptions.h>
#include <faiss_flashgmm/em/RowSource.h>

namespace faiss_flashgmm {

/** What FlashGMMClustering has beyond faiss::ClusteringParameters.
 *
 * No variance and weight model is best on all data (docs/benchmarks.md). The
 * default, one variance and equal weights, strays least from k-means where it
 * loses; the paper's is per_component and free.
 */
struct FlashGMMOptions {
    VarianceModel variance = VarianceModel::tied;
    WeightModel weights = WeightModel::uniform;
    Initialization init = Initialization::lloyd;
    int init_iterations = 10; ///< k-means iterations of Initialization::lloyd

    /// Stop when the mean log-likelihood gains less, relatively. 0: never.
    double tol = 0;
    /// Smallest variance, relative to the mean variance of a coordinate.
    double variance_floor = 1e-6;
    int64_t chunk_rows = 0; ///< rows read at once; 0: automatic

    /// Called after each chunk of rows, from the training thread.
    std::function<void(const Progress&)> progress;
};

/** Trains a coarse quantizer by fitting an isotropic Gaussian mixture
 * (Flash-GMM, arXiv 2606.10896) where faiss::Clustering runs k-means.
 *
 * All ClusteringParameters keep their meaning. The means end up in
 * `centroids` and in the index given to train(); variances and weights in
 * `mixture`. An index of inner product metric implies `spherical`.
 *
 * iteration_stats[i].obj is the L2 objective: the weighted sum of squared
 * distances of the training rows to their most responsible mean. The
 * likelihood and more are in `em_stats`.
 *
 * Every error is a faiss::FaissException thrown before `centroids`, `mixture`
 * or the index change.
 */
struct FlashGMMClustering : faiss::Clustering {
    FlashGMMOptions gmm;

    /// The fitted mixture; mixture.means equals centroids.
    Mixture mixture;
    std::vector<IterationStats> em_stats; ///< of all redos, in order
    bool converged = false;               ///< stopped by gmm.tol
    int64_t distinct_centroids = 0;

    FlashGMMClustering(int d, int k);
    FlashGMMClustering(int d, int k, const faiss::ClusteringParameters& cp);
    FlashGMMClustering(
            int d,
            int k,
            const faiss::ClusteringParameters& cp,
            const FlashGMMOptions& gmm);

    /** Fits the mixture and puts its means into the index.
     *
     * More than k * max_points_per_centroid rows are sampled without a copy.
     *
     * @param n         number of rows, >= k
     * @param x         rows, size n * d
     * @param index     reset, trained if needed, and filled with the means
     * @param weights   weight of each row, size n, >= 0, or null
     */
    void train(
            idx_t n,
            const float* x,
            faiss::Index& index,
            const float* weights = nullptr) override;

    /// The same over rows of another type, which are not copied as a whole.
    void train(
            idx_t n,
            RowView x,
            faiss::Index& index,
            const float* weights = nullptr);

    /// The same over rows that need not be in memory.
    void train(RowSource& rows, faiss::Index& index);

    /** The same over rows encoded by a codec; they are decoded in blocks of
     * decode_block_size. Shadows faiss::Clustering::train_encoded, which is
     * not virtual: called through a Clustering pointer that one runs k-means.
     *
     * @param codec     decodes x by sa_decode; null: x holds floats
     */
    void train_encoded(
            idx_t n,
            const uint8_t* x,
            const faiss::Index* codec,
            faiss::Index& index,
            const float* weights = nullptr);

    /** The m most responsible components of each row, best first.
     *
     * @param components    output, size n * m
     * @param log_scores    output, size n * m: log pi_k N(x; mu_k, s_k)
     * @param log_z         output, size n, or null: log-density of the row;
     *                      exp(log_score - log_z) is the responsibility
     */
    void assign(
            idx_t n,
            const float* x,
            int m,
            idx_t* components,
            float* log_scores,
            float* log_z = nullptr) const;

    ~FlashGMMClustering() override = default;

   protected:
    /// The arithmetic to train and assign with.
    virtual std::unique_ptr<Backend> make_backend() const;
    /// The rows of a caller.
    virtual std::unique_ptr<RowSource> rows_in_memory(
            idx_t n,
            RowView x,
            const float* weights) const;
};

/** assign() for a mixture that stands alone, such as one read from a file.
 *
 * @param backend   its last begin() is replaced
 */
void assign_to_mixture(
        Backend& backend,
        const Mixture& mixture,
        int64_t n,
        const float* x,
        int64_t m,
        int64_t* components,
        float* log_scores,
        float* log_z);

} // namespace faiss_flashgmm
