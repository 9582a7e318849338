#pragma once

#include <cstdint>

#include <faiss_flashgmm/gpu/DeviceRows.h>
#include <faiss_flashgmm/gpu/Launch.h>

namespace faiss_flashgmm::gpu {

/// The m most responsible components of rows: see Backend::assign.
class Assignment {
   public:
    Assignment(
            DeviceContext& context,
            const DeviceMixture& mixture,
            Launch& launch)
            : context_(context), mixture_(mixture), launch_(launch) {}

    /** @param user_offset  added to log-densities of conditioned units
     * @param components, log_scores, log_z  output of these rows, in host or
     *                     device memory; log_z may be null
     */
    void assign(
            const ResidentRows& rows,
            int64_t m,
            float user_offset,
            int64_t* components,
            float* log_scores,
            float* log_z);

   private:
    /// Results of row i of rows go to first + i.
    void assign_sparse(
            const SourceRows& rows,
            const HalfRows& half,
            int64_t first);
    void assign_dense(
            const SourceRows& rows,
            const uint32_t* list,
            int64_t count,
            int64_t first);

    DeviceContext& context_;
    const DeviceMixture& mixture_;
    Launch& launch_;

    int64_t m_ = 0;
    float user_offset_ = 0;
    DeviceBuffer<int64_t> components_{context_.memory};
    DeviceBuffer<float> log_scores_{context_.memory};
    DeviceBuffer<float> log_z_{context_.memory};
};

} // namespace faiss_flashgmm::gpu
