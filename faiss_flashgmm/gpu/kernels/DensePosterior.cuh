#pragma once

#include <cuda_runtime_api.h>

#include <faiss_flashgmm/gpu/kernels/Params.h>

namespace faiss_flashgmm::gpu {

/** Pass 1 in plain fp32, by direct differences: any row, any device, any k
 * and d. The floor of correctness that the fast kernels are tested against.
 */
struct DensePosterior {
    SourceRows rows;
    Components components;
    /// The rows to work on, or null: rows first, first + 1, ...
    const uint32_t* list = nullptr;
    int64_t first = 0;
    int64_t count = 0;

    float* logits = nullptr; ///< size count * k

    /// Rows whose logits fit a buffer of that size, at least 1.
    static int64_t rows_in(int64_t logits_size, int64_t k);

    void launch(cudaStream_t stream) const;
};

/// Pairs from logits. All with a responsibility above min_responsibility.
struct DensePairs {
    DensePosterior posterior;
    float min_responsibility = 0;
    ChunkOutput out;
    uint32_t* best = nullptr; ///< most responsible component of a row, or null

    int blocks() const;
    void launch(cudaStream_t stream) const;
};

/// The m largest logits of each row, best first, and log2 Z.
struct DenseTop {
    DensePosterior posterior; ///< the logits are used up
    int64_t m = 0;
    /// Size (rows in work) * m: output i belongs to posterior row i, or to
    /// list[i] if there is a list. Scores and log_z are in natural logs of
    /// the user's units: offset is added.
    int64_t* components = nullptr;
    float* log_scores = nullptr;
    float* log_z = nullptr;
    float offset = 0;

    void launch(cudaStream_t stream) const;
};

} // namespace faiss_flashgmm::gpu
