#pragma once

#include <cstdint>
#include <functional>

#include <faiss_flashgmm/em/RowSource.h>
#include <faiss_flashgmm/gpu/DeviceContext.h>

namespace faiss_flashgmm::gpu {

/// draw_kmeans_pp() of em/Initialization.h on the device: the same random
/// numbers, and the same means unless rounding decides.
void seed_means(
        DeviceContext& context,
        RowSource& rows,
        int64_t first,
        int64_t k,
        uint64_t seed,
        float* means,
        const std::function<void(int64_t)>& on_mean);

} // namespace faiss_flashgmm::gpu
