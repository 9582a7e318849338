#include <cub/device/device_radix_sort.cuh>

#include <faiss_flashgmm/gpu/kernels/PairSums.cuh>
#include <faiss_flashgmm/gpu/utils/Buffer.h>
#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace {

constexpr int kThreads = 256;

__global__ void make_keys_kernel(
        Pairs pairs,
        uint64_t* keys,
        float* values,
        int64_t count) {
    const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
    if (i < count) {
        const Pair pair = pairs.data[i];
        keys[i] = uint64_t(pair.bucket) << 32 | pair.row;
        values[i] = pair.value;
    }
}

__global__ void unpack_kernel(
        const uint64_t* keys,
        const float* values,
        SortedPair* sorted,
        int64_t count) {
    const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
    if (i < count) {
        sorted[i] = {uint32_t(keys[i]), values[i]};
    }
}

} // namespace

void sort_pairs(const PairSums& sums, int64_t count, cudaStream_t stream) {
    if (count == 0) {
        return;
    }
    DeviceBuffer<uint64_t> keys(count, "sort keys");
    DeviceBuffer<uint64_t> keys_out(count, "sorted keys");
    DeviceBuffer<float> values(count, "sort values");
    DeviceBuffer<float> values_out(count, "sorted values");
    const unsigned blocks = unsigned((count + kThreads - 1) / kThreads);
    make_keys_kernel<<<blocks, kThreads, 0, stream>>>(
            sums.chunk.pairs, keys.get(), values.get(), count);
    FLASHGMM_CUDA_LAUNCHED("make_keys");
    size_t bytes = 0;
    FLASHGMM_CUDA(cub::DeviceRadixSort::SortPairs(
            nullptr,
            bytes,
            keys.get(),
            keys_out.get(),
            values.get(),
            values_out.get(),
            count,
            0,
            64,
            stream));
    DeviceBuffer<char> scratch(bytes, "sorting");
    FLASHGMM_CUDA(cub::DeviceRadixSort::SortPairs(
            scratch.get(),
            bytes,
            keys.get(),
            keys_out.get(),
            values.get(),
            values_out.get(),
            count,
            0,
            64,
            stream));
    unpack_kernel<<<blocks, kThreads, 0, stream>>>(
            keys_out.get(), values_out.get(), sums.chunk.sorted, count);
    FLASHGMM_CUDA_LAUNCHED("unpack_keys");
}

} // namespace faiss_flashgmm::gpu
