#pragma once

#include <cstdint>
#include <string>

#include <faiss_flashgmm/em/RowMoments.h>
#include <faiss_flashgmm/gpu/DeviceRows.h>
#include <faiss_flashgmm/gpu/kernels/RowMoments.cuh>

namespace faiss_flashgmm::gpu {

/// Moments and check of rows on the device: see Backend::add_moments.
class DeviceMoments {
   public:
    explicit DeviceMoments(DeviceContext& context) : context_(context) {}

    /// Adds rows of which the first has the number `first`; waits.
    std::string add(
            int64_t first,
            const ResidentRows& rows,
            RowMoments& moments);

    /// Bytes of device memory.
    static int64_t bytes(int64_t d);

   private:
    std::string describe(
            int64_t first,
            const SourceRows& rows,
            uint64_t first_bad) const;

    DeviceContext& context_;
    DeviceBuffer<double> pivot_{context_.memory};
    DeviceBuffer<double> parts_{context_.memory};
    DeviceBuffer<double> sums_{context_.memory};
    DeviceBuffer<uint64_t> first_bad_{context_.memory};
    PinnedBuffer<double> host_sums_;
    PinnedBuffer<uint64_t> host_first_bad_;
};

} // namespace faiss_flashgmm::gpu
