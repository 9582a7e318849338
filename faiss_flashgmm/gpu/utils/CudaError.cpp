#include <faiss_flashgmm/gpu/utils/CudaError.h>

#include <cstdio>

namespace faiss_flashgmm::gpu {

CudaError::CudaError(
        cudaError_t code,
        const char* call,
        const char* file,
        int line)
        : Error(
                  format("CUDA: %s failed at %s:%d: %s (%s)",
                         call,
                         file,
                         line,
                         cudaGetErrorName(code),
                         cudaGetErrorString(code))),
          code(code) {}

void check_cuda(
        cudaError_t code,
        const char* call,
        const char* file,
        int line) {
    if (code != cudaSuccess) {
        cudaGetLastError();
        throw CudaError(code, call, file, line);
    }
}

void warn_cuda(
        cudaError_t code,
        const char* call,
        const char* file,
        int line) noexcept {
    if (code != cudaSuccess && code != cudaErrorCudartUnloading) {
        cudaGetLastError();
        std::fprintf(
                stderr,
                "faiss_flashgmm: %s failed at %s:%d: %s\n",
                call,
                file,
                line,
                cudaGetErrorName(code));
    }
}

} // namespace faiss_flashgmm::gpu
