#pragma once

#include <faiss_flashgmm/gpu/kernels/SparsePosterior.cuh>

// Pass 1 by matrix unit, each built for the devices that have it.

namespace faiss_flashgmm::gpu {

/// Columns of rows that one thread's share of fits registers.
constexpr int64_t kNarrow = 128;

/// With blocks of a multiprocessor.
constexpr PassShape kMmaShape{2, 128, 1024, 2};
constexpr PassShape kWgmmaShape{1, 128, 1024, 2};
constexpr PassShape kNarrowWgmmaShape{1, 192, 768, 1};

void launch_mma(const SparsePosterior& p, cudaStream_t stream);
void launch_wgmma(const SparsePosterior& p, cudaStream_t stream);
void launch_narrow_wgmma(const SparsePosterior& p, cudaStream_t stream);

} // namespace faiss_flashgmm::gpu
