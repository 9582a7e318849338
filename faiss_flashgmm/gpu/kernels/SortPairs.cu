#include <bit>

#include <cub/device/device_radix_sort.cuh>

#include <faiss_flashgmm/gpu/kernels/PairSums.cuh>
#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace {

constexpr int kThreads = 256;

__global__ void make_keys_kernel(
        Pairs pairs,
        int row_bits,
        uint64_t* keys,
        float* values,
        int64_t count) {
    const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
    if (i < count) {
        const Pair pair = pairs.data[i];
        keys[i] = uint64_t(pair.bucket) << row_bits | pair.row;
        values[i] = pair.value;
    }
}

__global__ void unpack_kernel(
        const uint64_t* keys,
        int row_bits,
        const float* values,
        SortedPair* sorted,
        int64_t count) {
    const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
    if (i < count) {
        const uint64_t rows = (uint64_t(1) << row_bits) - 1;
        sorted[i] = {uint32_t(keys[i] & rows), values[i]};
    }
}

} // namespace

void sort_pairs(
        const PairSums& sums,
        int64_t count,
        SortScratch& scratch,
        cudaStream_t stream) {
    if (count == 0) {
        return;
    }
    scratch.keys.reserve(2 * count, "sort keys");
    scratch.values.reserve(2 * count, "sort values");
    uint64_t* const keys = scratch.keys.get();
    float* const values = scratch.values.get();
    const int row_bits = std::bit_width(uint64_t(sums.source_rows.n));
    const int bits = row_bits + std::bit_width(sums.chunk.buckets.count);
    const unsigned blocks = unsigned((count + kThreads - 1) / kThreads);
    make_keys_kernel<<<blocks, kThreads, 0, stream>>>(
            sums.chunk.pairs, row_bits, keys, values, count);
    FLASHGMM_CUDA_LAUNCHED("make_keys");
    const auto sort = [&](char* memory, size_t& bytes) {
        FLASHGMM_CUDA(cub::DeviceRadixSort::SortPairs(
                memory,
                bytes,
                keys,
                keys + count,
                values,
                values + count,
                count,
                0,
                bits,
                stream));
    };
    size_t bytes = 0;
    sort(nullptr, bytes);
    scratch.memory.reserve(bytes, "sorting");
    sort(scratch.memory.get(), bytes);
    unpack_kernel<<<blocks, kThreads, 0, stream>>>(
            keys + count, row_bits, values + count, sums.chunk.sorted, count);
    FLASHGMM_CUDA_LAUNCHED("unpack_keys");
}

} // namespace faiss_flashgmm::gpu
