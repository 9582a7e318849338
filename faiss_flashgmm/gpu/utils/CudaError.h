#pragma once

#include <cstddef>

#include <cuda_runtime_api.h>

#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm::gpu {

/// A CUDA call failed. The message has the call, its place, and the error's
/// name and text.
class CudaError : public Error {
   public:
    CudaError(cudaError_t code, const char* call, const char* file, int line);

    cudaError_t code;
};

/// Throws CudaError if code is an error, after clearing it.
void check_cuda(cudaError_t code, const char* call, const char* file, int line);

/// For destructors: prints instead of throwing. Silent when the process is
/// already unloading the driver.
void warn_cuda(
        cudaError_t code,
        const char* call,
        const char* file,
        int line) noexcept;

} // namespace faiss_flashgmm::gpu

#define FLASHGMM_CUDA(call) \
    ::faiss_flashgmm::gpu::check_cuda((call), #call, __FILE__, __LINE__)
#define FLASHGMM_CUDA_NO_THROW(call) \
    ::faiss_flashgmm::gpu::warn_cuda((call), #call, __FILE__, __LINE__)

/// After a kernel launch.
#define FLASHGMM_CUDA_LAUNCHED(kernel) \
    ::faiss_flashgmm::gpu::check_cuda( \
            cudaGetLastError(), "launch of " kernel, __FILE__, __LINE__)
