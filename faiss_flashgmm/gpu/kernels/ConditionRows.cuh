#pragma once

#include <cuda_runtime_api.h>

#include <faiss_flashgmm/gpu/kernels/Params.h>

namespace faiss_flashgmm::gpu {

/// Rounds conditioned rows to fp16 and lays them out in tiles.
void condition_rows(
        const SourceRows& rows,
        const HalfRows& out,
        cudaStream_t stream);

/** Rounds means to fp16 and folds their constants.
 *
 * @param moves    size k, or null: |mean - former mean| and |mean|^2 of the
 *                 rounded means, the former being what is in out.means
 */
void condition_means(
        const Components& components,
        const HalfComponents& out,
        float2* moves,
        cudaStream_t stream);

} // namespace faiss_flashgmm::gpu
