#pragma once

#include <cstdint>

#include <faiss_flashgmm/em/SufficientStats.h>
#include <faiss_flashgmm/gpu/DeviceRows.h>
#include <faiss_flashgmm/gpu/Launch.h>

namespace faiss_flashgmm::gpu {

/// Adds rows to the statistics of an iteration: the sequence of kernels.
class EStep {
   public:
    EStep(DeviceContext& context, const DeviceMixture& mixture, Launch& launch)
            : context_(context), mixture_(mixture), launch_(launch) {}

    /// Clears the statistics.
    void begin();
    void accumulate(const ResidentRows& rows);
    /// The sums of all rows since begin().
    SufficientStats& finish();

    /// Rows since begin() that took the dense way.
    int64_t dense_rows() const {
        return dense_rows_;
    }

   private:
    /// @param best     in and out, component of each row, or null
    void accumulate_sparse(
            const FloatRows& rows,
            const HalfRows& half,
            uint32_t* best);
    void accumulate_dense(
            const FloatRows& rows,
            const uint32_t* list,
            int64_t count,
            uint32_t* best);
    void sort(const PairSums& sums);

    DeviceContext& context_;
    const DeviceMixture& mixture_;
    Launch& launch_;

    int64_t rows_ = 0;
    int64_t dense_rows_ = 0;
    DeviceBuffer<double> device_stats_;
    PinnedBuffer<double> host_scalars_;
    SufficientStats stats_;
    PinnedScope pinned_stats_;
};

} // namespace faiss_flashgmm::gpu
