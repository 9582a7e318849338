#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <faiss_flashgmm/em/Backend.h>
#include <faiss_flashgmm/gpu/CudaOptions.h>

namespace faiss_flashgmm {

/** The arithmetic of EM on one or more NVIDIA GPUs.
 *
 * Rows may be in host memory (pinned memory copies faster) or in memory of the
 * device, which is read in place, and of any RowType. Several devices share
 * each chunk of rows.
 *
 * From sm_80 on, pass 1 multiplies rows and means on the tensor
 * cores and keeps, for each row, log Z over all components and the few with
 * responsibility above min_responsibility; pass 2 sums rows over these pairs.
 * Rows with very many such components, or that fp16 cannot hold, go through
 * the reference kernels; so does everything on older devices. See
 * docs/kernel.md.
 *
 * Device memory, on each device, does not depend on the number of rows except
 * for those that are kept (see Backend::begin_fit): device_bytes() of the
 * largest launch; and
 *  - for rows of host memory that are not kept, two pieces of up to 128 MB,
 *    with 2 d + 8 bytes a row more;
 *  - for each kept row 2 d + 12 bytes and, if it is not device memory
 *    itself, d coordinates and 4 bytes; kept as long as there is room.
 * (d here is rounded up to a multiple of 32.) Launches get smaller where this
 * does not fit.
 */
class CudaBackend : public Backend {
   public:
    /// Throws Error if a device is not available.
    explicit CudaBackend(CudaOptions options = {});
    ~CudaBackend() override;

    /// Empty if the device can be used, or what is missing.
    static std::string why_unavailable(int device = 0);

    const char* name() const override {
        return "cuda";
    }
    int64_t preferred_chunk(int64_t k, int64_t d) const override;

    void begin_fit(int64_t n, int64_t k, int64_t d) override;
    void end_fit() override;
    bool has_rows(const RowKey& key) const override;
    void forget_rows(int64_t source) override;
    std::string add_moments(
            int64_t first,
            const Rows& rows,
            RowMoments& moments) override;
    void draw_kmeans_pp(
            RowSource& rows,
            int64_t first,
            int64_t k,
            uint64_t seed,
            float* means,
            const std::function<void(int64_t)>& on_mean) override;

    void begin(const Mixture& mixture, const Conditioning& conditioning)
            override;
    void add_rows(const Rows& rows) override;
    SufficientStats& finish() override;
    bool advance(const EMOptions& options, Sums& sums, MStepReport& report)
            override;
    void read_mixture(Mixture& mixture) override;
    void assign(
            int64_t n,
            RowView x,
            int64_t m,
            int64_t* components,
            float* log_scores,
            float* log_z) override;

    /** Bytes that launches of n rows take on a device, with the mixture and
     * the statistics; n at most CudaOptions::max_launch_rows. About
     *
     *     n (900 + d / 2) + k (18 d + 90) + b (8 d + 90) + s 3.2 MB + 17 MB
     *
     * with b the buckets of pairs, at most max(k, 32768), and s the least of
     * n / 128 and the multiprocessors.
     */
    static int64_t device_bytes(int64_t n, int64_t k, int64_t d);
    /// The most bytes of a device that have been in use at once.
    int64_t peak_device_bytes() const;

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
