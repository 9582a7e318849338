#pragma once

#include <cuda_runtime_api.h>

#include <faiss_flashgmm/gpu/kernels/Params.h>

namespace faiss_flashgmm::gpu {

/** Lower bounds of the rows' largest logits, by the component that was best for
 * the row before: from the row's distance to it then and how far it has moved
 * since; or, where that says too little, from the row itself.
 */
struct SeedRows {
    HalfRows rows;
    HalfComponents components;
    int64_t k = 0;
    const uint32_t* best = nullptr; ///< k or more: not known
    /// From the means before the present ones, or null.
    const float* distances = nullptr;
    const float2* moves = nullptr; ///< see condition_means; if distances
    /// A bound from the distance may be so many bits too low.
    float most_loss = 8;
    float* seeds = nullptr; ///< size HalfRows::padded_rows(rows.n)

    void launch(cudaStream_t stream) const;
};

} // namespace faiss_flashgmm::gpu
