#include <faiss_flashgmm/gpu/utils/Buffer.h>

#include <cuda_runtime_api.h>

#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace detail {

void* allocate_device(size_t bytes, const char* what) {
    void* data = nullptr;
    const cudaError_t code = cudaMalloc(&data, bytes);
    if (code == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        size_t available = 0;
        size_t total = 0;
        FLASHGMM_CUDA(cudaMemGetInfo(&available, &total));
        throw OutOfMemory(format("%s on the GPU", what), bytes, available);
    }
    check_cuda(code, "cudaMalloc", __FILE__, __LINE__);
    return data;
}

void free_device(void* data) noexcept {
    FLASHGMM_CUDA_NO_THROW(cudaFree(data));
}

void* allocate_pinned(size_t bytes, const char* what) {
    void* data = nullptr;
    const cudaError_t code = cudaMallocHost(&data, bytes);
    if (code == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        throw OutOfMemory(
                format("%s in page-locked host memory", what), bytes, 0);
    }
    check_cuda(code, "cudaMallocHost", __FILE__, __LINE__);
    return data;
}

void free_pinned(void* data) noexcept {
    FLASHGMM_CUDA_NO_THROW(cudaFreeHost(data));
}

} // namespace detail

void PinnedScope::pin(void* data, size_t bytes) {
    reset();
    if (cudaHostRegister(data, bytes, cudaHostRegisterDefault) == cudaSuccess) {
        data_ = data;
    } else {
        cudaGetLastError();
    }
}

void PinnedScope::reset() noexcept {
    if (data_ != nullptr) {
        FLASHGMM_CUDA_NO_THROW(cudaHostUnregister(data_));
    }
    data_ = nullptr;
}

} // namespace faiss_flashgmm::gpu
