#pragma once

#include <cuda_runtime_api.h>

#include <faiss_flashgmm/gpu/kernels/Params.h>

namespace faiss_flashgmm::gpu {

/** Computes the pairs of each row again, by direct fp32 differences of the
 * rows as they came: nothing but the choice of the pairs, and the sum of those
 * left out, depends on fp16.
 */
struct RefinePairs {
    SourceRows rows;
    Components components;
    RowRanges ranges;
    ChunkOutput out; ///< pairs' values and row_sums are written

    /// Size n * m, or null. Rows without pairs are left alone. Scores and
    /// log_z are in natural logs of the user's units: offset is added.
    int64_t m = 0; ///< each row has as many pairs, if there are that many
    int64_t* top_components = nullptr;
    float* log_scores = nullptr;
    float* log_z = nullptr;
    float offset = 0;

    int blocks() const;
    void launch(cudaStream_t stream) const;
};

} // namespace faiss_flashgmm::gpu
