#pragma once

#include <faiss_flashgmm/gpu/CudaOptions.h>
#include <faiss_flashgmm/gpu/utils/Device.h>
#include <faiss_flashgmm/gpu/utils/DeviceMemory.h>
#include <faiss_flashgmm/gpu/utils/PhaseTimer.h>
#include <faiss_flashgmm/gpu/utils/StagedCopy.h>

namespace faiss_flashgmm::gpu {

/// What the parts of the backend share on one device.
struct DeviceContext {
    /// The device must be the current one.
    DeviceContext(int device, const CudaOptions& options)
            : device(device),
              options(options),
              memory(options.memory_limit),
              timer(options.profile) {}

    const int device;
    const CudaOptions options;
    DeviceMemory memory;
    Stream compute;
    Stream copying; ///< rows on their way to the device
    StagedCopy staged{device, copying};
    PhaseTimer<CudaTimes> timer;

    bool refines() const {
        return options.precision == CudaPrecision::fp32;
    }
};

} // namespace faiss_flashgmm::gpu
