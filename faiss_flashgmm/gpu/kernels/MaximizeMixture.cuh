#pragma once

#include <cuda_runtime_api.h>

#include <faiss_flashgmm/em/EMOptions.h>
#include <faiss_flashgmm/gpu/kernels/Params.h>

namespace faiss_flashgmm::gpu {

/// A mixture in conditioned units, and what the kernels need of it.
struct MixtureArrays {
    float* means = nullptr;      ///< size k * d
    double* variances = nullptr; ///< size k
    double* weights = nullptr;   ///< size k
    float* precision = nullptr;  ///< size k, see Components
    float* offset = nullptr;     ///< size k, likewise, less log2_base
};

/// What the host has to know of a mixture, and of the M-step that led to it.
struct MixtureFacts {
    double log2_base; ///< largest log2 of weight and norm
    double least_variance;
    float largest_mean; ///< magnitude of a coordinate

    // Of an M-step.
    double total; ///< of the counts
    double imbalance;
    double moved_mass;
    int64_t empty;
    int64_t at_floor;
    double sums[sizeof(RowSums) / sizeof(double) + 1]; ///< see PairSums::stats
};

/// Finds the facts, precisions and offsets of a mixture.
struct FoldConstants {
    int64_t k = 0;
    int64_t d = 0;
    MixtureArrays mixture;
    MixtureFacts* facts = nullptr;

    void launch(cudaStream_t stream) const;
};

/** The M-step of em/MStep.h, in fp64 and in fixed order, with the constants of
 * its result. What counts as empty is counted, and keeps its mean and variance.
 */
struct MaximizeMixture {
    int64_t k = 0;
    int64_t d = 0;
    const double* stats = nullptr; ///< see PairSums::stats
    MixtureArrays former;
    MixtureArrays updated;
    double* residual = nullptr; ///< size k, scratch
    MixtureFacts* facts = nullptr;

    double empty_threshold = 0; ///< share of the mean count
    double floor = 0;           ///< least variance
    bool tied = false;
    bool uniform = false;
    MeanConstraint constraint = MeanConstraint::none;
    int64_t frozen = 0;
    double scale = 1;             ///< of the conditioning
    const float* shift = nullptr; ///< size d, likewise

    void launch(cudaStream_t stream) const;
};

/// sums += values
void add_statistics(
        int64_t size,
        const double* values,
        double* sums,
        cudaStream_t stream);

} // namespace faiss_flashgmm::gpu
