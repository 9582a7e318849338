#pragma once

#include <string>

#include <faiss_flashgmm/FlashGMMClustering.h>
#include <faiss_flashgmm/gpu/CudaBackend.h>

namespace faiss_flashgmm {

/** FlashGMMClustering on one or more NVIDIA GPUs.
 *
 * Takes its place: same parameters, same results up to rounding. Use it from
 * about 1e5 rows on; needs no FAISS GPU build.
 *
 * Rows, and weights with them, may be in memory of a device. Rows of host
 * memory are copied once if there is room for them on the devices, else in
 * every iteration.
 */
struct GpuFlashGMMClustering : FlashGMMClustering {
    CudaOptions cuda;

    /// Train on the CPU, with a warning on stderr, if there is no device. If
    /// false, train() and assign() throw a FaissException that says why.
    bool cpu_fallback = false;

    using FlashGMMClustering::FlashGMMClustering;
    using FlashGMMClustering::train;

    /// Whether the device can be used.
    static bool available(int device = 0);
    /// Empty if it can, or what is missing.
    static std::string why_unavailable(int device = 0);

   protected:
    std::unique_ptr<Backend> make_backend() const override;
    std::unique_ptr<RowSource> rows_in_memory(
            idx_t n,
            RowView x,
            const float* weights) const override;
};

} // namespace faiss_flashgmm
