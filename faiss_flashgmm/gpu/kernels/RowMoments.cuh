#pragma once

#include <cuda_runtime_api.h>

#include <faiss_flashgmm/gpu/kernels/Params.h>

namespace faiss_flashgmm::gpu {

/** Sums of rows and of their squares about a pivot, and the first number that
 * is not finite: see em/RowMoments.h.
 */
struct SumMoments {
    static constexpr int64_t kBlocks = 256; ///< parts, added in fixed order
    static constexpr uint64_t kNone = ~uint64_t(0);

    SourceRows rows;
    const double* pivot = nullptr; ///< size d
    double* parts = nullptr;       ///< size kBlocks * sums_size(d)

    /// Output: sums (d) | squares (d) | rows of positive weight | weight
    double* sums = nullptr;
    /// Output: (d + 1) row, plus 1 + column or, if the weight of the row is
    /// not finite and >= 0, plus 0; kNone if all is well.
    uint64_t* first_bad = nullptr;

    static __host__ __device__ int64_t sums_size(int64_t d) {
        return 2 * d + 2;
    }
    void launch(cudaStream_t stream) const;
};

/// Copies rows by index, as floats.
struct GatherRows {
    SourceRows rows;
    const int64_t* indices = nullptr; ///< size count
    int64_t count = 0;
    float* x = nullptr;       ///< output, size count * d, or null
    float* weights = nullptr; ///< output, size count, or null

    void launch(cudaStream_t stream) const;
};

} // namespace faiss_flashgmm::gpu
