#include <faiss_flashgmm/gpu/utils/Buffer.h>

#include <cuda_runtime_api.h>

#include <faiss_flashgmm/gpu/utils/CudaError.h>
#include <faiss_flashgmm/utils/memory.h>

namespace faiss_flashgmm::gpu {

void* PinnedMemory::allocate(size_t bytes, const char* what) {
    void* data = nullptr;
    const cudaError_t code = cudaMallocHost(&data, bytes);
    if (code == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        throw OutOfMemory(
                format("%s in page-locked host memory", what),
                bytes,
                available_memory());
    }
    check_cuda(code, "cudaMallocHost", __FILE__, __LINE__);
    return data;
}

void PinnedMemory::free(void* data, size_t) noexcept {
    FLASHGMM_CUDA_NO_THROW(cudaFreeHost(data));
}

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
