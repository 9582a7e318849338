#pragma once

#include <cuda_runtime_api.h>

#include <faiss_flashgmm/gpu/kernels/SparsePosterior.cuh>

namespace faiss_flashgmm::gpu {

/** Turns kept logits into log Z and the pairs with a responsibility above
 * min_responsibility times the row's largest.
 *
 * A row with too many logits, or that fp16 cannot hold, is put on the list
 * of dense rows and counts in nothing else.
 */
struct EmitPairs {
    /// A row with more groups is dense, so that few rows always fit.
    static constexpr int64_t kMostGroups = 512;

    int64_t n = 0;
    const float* weights = nullptr; ///< of the rows, or null
    Components components;
    KeptLogits kept;
    float min_responsibility = 0;
    int m = 1;       ///< the m largest, and what is close to them: see
    float slack = 0; ///< SparsePosterior

    ChunkOutput out;
    /// Where each row's pairs are; then all pairs are listed.
    RowRanges ranges;
    /// Most responsible component, and squared distance to its mean in
    /// conditioned units (infinity: not known), or null.
    uint32_t* best = nullptr;
    float* distances = nullptr;

    /// Blocks of the launch: each writes one of out.row_sums.
    int blocks() const;
    void launch(cudaStream_t stream) const;
};

} // namespace faiss_flashgmm::gpu
