#pragma once

#include <faiss_flashgmm/gpu/CudaOptions.h>
#include <faiss_flashgmm/gpu/utils/Device.h>
#include <faiss_flashgmm/gpu/utils/PhaseTimer.h>

namespace faiss_flashgmm::gpu {

/// What the parts of the backend share on one device.
struct DeviceContext {
    explicit DeviceContext(const CudaOptions& options)
            : options(options), timer(options.profile) {}

    const CudaOptions options;
    Stream compute;
    Stream copying; ///< rows on their way to the device
    PhaseTimer<CudaTimes> timer;

    bool refines() const {
        return options.precision == CudaPrecision::fp32;
    }
};

} // namespace faiss_flashgmm::gpu
