#pragma once

#include <string>

#include <faiss_flashgmm/FlashGMMClustering.h>
#include <faiss_flashgmm/gpu/CudaBackend.h>

namespace faiss_flashgmm {

/** FlashGMMClustering on one NVIDIA GPU.
 *
 * Takes its place: same parameters, same results up to rounding. Use it from
 * about 1e5 rows on; needs no FAISS GPU build.
 *
 * Rows that are all trained on (n <= k * max_points_per_centroid) are copied to
 * the device once. A sample of them is copied in every iteration.
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

    void train(
            idx_t n,
            const float* x,
            faiss::Index& index,
            const float* weights = nullptr) override;

   protected:
    std::unique_ptr<Backend> make_backend() const override;

   private:
    /// Rows that do not change while train() runs.
    const float* stable_rows_ = nullptr;
    int64_t stable_size_ = 0;
};

} // namespace faiss_flashgmm
