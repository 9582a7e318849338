#pragma once

#include <cuda_runtime_api.h>

#include <faiss_flashgmm/gpu/kernels/Params.h>

namespace faiss_flashgmm::gpu {

/** k-means++: the squared distance of each row to the means so far, in fp64,
 * and a draw by weight times it.
 */
struct SeedMeans {
    static constexpr int64_t kStretch = 256; ///< rows of a block

    SourceRows rows;                 ///< float32
    double* nearest = nullptr;       ///< size n; infinite at first
    double* mass = nullptr;          ///< size stretches(): of weight * nearest
    double* weight = nullptr;        ///< size stretches(): of weight
    float* means = nullptr;          ///< size k * d
    const double* uniform = nullptr; ///< size k: what draws mean k

    __host__ __device__ int64_t stretches() const {
        return (rows.n + kStretch - 1) / kStretch;
    }
    /// Takes mean c into account; before the first: c = -1.
    void add(int64_t c, cudaStream_t stream) const;
    /// Draws mean c.
    void draw(int64_t c, cudaStream_t stream) const;
};

} // namespace faiss_flashgmm::gpu
