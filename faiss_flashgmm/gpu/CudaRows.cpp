#include <faiss_flashgmm/gpu/CudaRows.h>

#include <faiss_flashgmm/gpu/kernels/RowMoments.cuh>
#include <faiss_flashgmm/gpu/utils/Buffer.h>
#include <faiss_flashgmm/gpu/utils/Device.h>
#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

using namespace gpu;

bool CudaRows::on_device(const void* x) {
    cudaPointerAttributes attributes{};
    if (cudaPointerGetAttributes(&attributes, x) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    return attributes.type == cudaMemoryTypeDevice ||
            attributes.type == cudaMemoryTypeManaged;
}

void CudaRows::wait_for(const void* x) {
    cudaPointerAttributes attributes{};
    FLASHGMM_CUDA(cudaPointerGetAttributes(&attributes, x));
    const DeviceScope scope(attributes.device);
    FLASHGMM_CUDA(cudaDeviceSynchronize());
}

CudaRows::CudaRows(int64_t n, int64_t d, RowView x, const float* weights)
        : n_(n), d_(d), x_(x), weights_(weights) {
    FLASHGMM_THROW_IF_NOT_FMT(n >= 0, "n = %ld rows", long(n));
    FLASHGMM_THROW_IF_NOT_FMT(d >= 1, "d = %ld must be at least 1", long(d));
    FLASHGMM_THROW_IF_NOT_FMT(
            n == 0 || on_device(x.data),
            "the %ld rows are not in memory of a CUDA device",
            long(n));
    FLASHGMM_THROW_IF_NOT_FMT(
            weights == nullptr || on_device(weights),
            "the rows are in memory of a CUDA device, their weights are not");
}

Rows CudaRows::read(int64_t begin, int64_t count) {
    FLASHGMM_THROW_IF_NOT_FMT(
            begin >= 0 && count >= 0 && begin <= n_ - count,
            "rows [%ld, %ld + %ld) of a source of %ld rows",
            long(begin),
            long(begin),
            long(count),
            long(n_));
    return {count, x_.from(begin * d_), weights_ ? weights_ + begin : nullptr};
}

void CudaRows::gather(
        std::span<const int64_t> indices,
        float* x,
        float* weights) {
    if (indices.empty()) {
        return;
    }
    cudaPointerAttributes attributes{};
    FLASHGMM_CUDA(cudaPointerGetAttributes(&attributes, x_.data));
    const DeviceScope scope(attributes.device);
    const int64_t count = int64_t(indices.size());
    DeviceMemory memory;
    DeviceBuffer<int64_t> wanted(memory);
    DeviceBuffer<float> found(memory);
    DeviceBuffer<float> found_weights(memory);
    wanted.reserve(count, "the indices of the rows");
    GatherRows gather;
    gather.rows.n = n_;
    gather.rows.d = d_;
    gather.rows.x = x_.data;
    gather.rows.type = x_.type;
    gather.rows.weights = weights_;
    gather.indices = wanted.get();
    gather.count = count;
    if (x) {
        found.reserve(count * d_, "the chosen rows");
        gather.x = found.get();
    }
    if (weights) {
        found_weights.reserve(count, "the weights of the chosen rows");
        gather.weights = found_weights.get();
    }
    const Stream stream;
    const auto copy = [&](auto* to, const auto* from, int64_t size) {
        FLASHGMM_CUDA(cudaMemcpyAsync(
                to, from, size * sizeof(*to), cudaMemcpyDefault, stream));
    };
    copy(wanted.get(), indices.data(), count);
    gather.launch(stream);
    if (x) {
        copy(x, found.get(), count * d_);
    }
    if (weights) {
        copy(weights, found_weights.get(), count);
    }
    stream.synchronize();
}

} // namespace faiss_flashgmm
