#pragma once

#include <cuda_runtime_api.h>

#include <faiss_flashgmm/gpu/kernels/Params.h>

namespace faiss_flashgmm::gpu {

/// Eight logits of a row: of components first + 8 (i / 2) + i % 2.
struct LogitGroup {
    float4 logits[2];
    uint32_t first;
    uint32_t unused[3];

    static __host__ __device__ uint32_t component(uint32_t first, int i) {
        return first + 8 * (i / 2) + i % 2;
    }
};

/// The logits of each row that may matter: those of groups that have one close
/// to the row's largest.
struct KeptLogits {
    static constexpr uint32_t kOverflow = 0xFFFFFFFF;

    /// SparsePosterior::streams(n) streams of groups_of_stream groups each.
    LogitGroup* groups = nullptr;
    uint32_t groups_of_stream = 0;

    /// Components are shared out between so many warpgroups.
    static constexpr int kParts = 2;

    /// 4 * kParts for each row: first group, and number of groups or kOverflow.
    uint2* ranges = nullptr;
    float* largest = nullptr; ///< of the logits of each part, of each row
    float* second = nullptr;  ///< likewise, if SparsePosterior asks for it
};

/** Pass 1 on the tensor cores of sm_90a: all logits, of which those that may
 * matter are kept.
 */
struct SparsePosterior {
    HalfRows rows;
    HalfComponents components;
    /// Lower bounds of each row's largest logit, or null. The better they are
    /// the fewer logits are kept that turn out not to matter.
    const float* seeds = nullptr;

    /// Keep what is at least this share of the largest,
    float min_responsibility = 0;
    /// and all that may sum to more than this share of Z,
    float z_error = 1.0f / (1 << 11);
    /// and, if not negative, the second largest with all that are within so
    /// many bits of it.
    float second_slack = -1;

    /// Of whole tiles, see HalfRows::padded_rows().
    KeptLogits kept;

    /// On the current device: threads that keep logits, times two.
    static int64_t streams(int64_t n);
    static bool supported();

    void launch(cudaStream_t stream) const;
};

} // namespace faiss_flashgmm::gpu
