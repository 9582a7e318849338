#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <faiss_flashgmm/em/Backend.h>
#include <faiss_flashgmm/gpu/CudaOptions.h>

namespace faiss_flashgmm {

/** E-step on one NVIDIA GPU.
 *
 * Rows may be in host memory (pinned memory copies faster) or in memory of the
 * device, which is read in place.
 *
 * On sm_90, pass 1 multiplies rows and means on the tensor
 * cores and keeps, for each row, log Z over all components and the few with
 * responsibility above min_responsibility; pass 2 sums rows over these pairs.
 * Rows with very many such components, or that fp16 cannot hold, go through
 * the reference kernels; so does everything elsewhere. See docs/kernel.md.
 *
 * Device memory, besides kept rows:
 *  - k (14 d + 40) bytes for the mixture and the statistics;
 *  - for a launch of r = min(max_launch_rows, rows of a call) rows,
 *    r (2 d + 880) + (r / 8 + max(k, 32768)) (4 d + 56) bytes, and 3.2 MB for
 * each of min(r / 128, multiprocessors);
 *  - 12 d min(rows, 2^26 / d) for rows from host memory.
 */
class CudaBackend : public Backend {
   public:
    /// Throws Error if the device is not available.
    explicit CudaBackend(CudaOptions options = {});
    ~CudaBackend() override;

    /// Empty if the device can be used, or what is missing.
    static std::string why_unavailable(int device = 0);

    const char* name() const override {
        return "cuda";
    }
    int64_t preferred_chunk(int64_t k, int64_t d) const override;
    void begin(const Mixture& mixture, const Conditioning& conditioning)
            override;
    void accumulate(int64_t n, const float* x, const float* weights) override;
    SufficientStats& finish() override;
    void assign(
            int64_t n,
            const float* x,
            int64_t m,
            int64_t* components,
            float* log_scores,
            float* log_z) override;

    /** Promises that this memory, and the weights that come with it, do not
     * change until the next call.
     *
     * Chunks that lie in it are then copied once and stay on the device, in
     * the form that the kernels read, which takes 6 d + 8 bytes a row (2 d + 8
     * if x is device memory). What does not fit is copied in every iteration.
     *
     * @param x         rows, or null: keep nothing any more
     * @param size      number of floats
     */
    void keep_rows(const float* x, int64_t size);

    /// Rows since begin() that took the dense way.
    int64_t dense_rows() const;
    /// Whether the tensor cores serve the present mixture.
    bool on_tensor_cores() const;
    const CudaTimes& times() const;

   private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

} // namespace faiss_flashgmm
