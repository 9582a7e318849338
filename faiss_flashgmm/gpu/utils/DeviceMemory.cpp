#include <faiss_flashgmm/gpu/utils/DeviceMemory.h>

#include <algorithm>

#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

int64_t DeviceMemory::available() const {
    size_t available = 0;
    size_t total = 0;
    FLASHGMM_CUDA(cudaMemGetInfo(&available, &total));
    return limit_ > 0 ? std::min(limit_ - used_, int64_t(available))
                      : int64_t(available);
}

void* DeviceMemory::allocate(size_t bytes, const char* what) {
    void* data = nullptr;
    cudaError_t code = cudaErrorMemoryAllocation;
    if (limit_ == 0 || bytes <= size_t(limit_ - used_)) {
        code = cudaMalloc(&data, bytes);
    }
    if (code == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        throw OutOfMemory(
                format("%s on the GPU", what),
                bytes,
                uint64_t(std::max<int64_t>(0, available())));
    }
    check_cuda(code, "cudaMalloc", __FILE__, __LINE__);
    used_ += int64_t(bytes);
    peak_ = std::max(peak_, used_);
    return data;
}

void DeviceMemory::free(void* data, size_t bytes) noexcept {
    FLASHGMM_CUDA_NO_THROW(cudaFree(data));
    used_ -= int64_t(bytes);
}

} // namespace faiss_flashgmm::gpu
