#include <faiss_flashgmm/gpu/kernels/RowMoments.cuh>

#include <algorithm>

#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace {

constexpr int kColumns = 32; // of a block: a warp reads a row
constexpr int kWarps = 8;

__device__ void report(uint64_t* first_bad, uint64_t place) {
    atomicMin(reinterpret_cast<unsigned long long*>(first_bad), place);
}

/// Over the warps of the block; the first one has the result.
__device__ double sum_over_warps(double v, double (*shared)[kColumns]) {
    __syncthreads();
    shared[threadIdx.y][threadIdx.x] = v;
    __syncthreads();
    for (int w = 1; threadIdx.y == 0 && w < kWarps; ++w) {
        v += shared[w][threadIdx.x];
    }
    return v;
}

__global__ void __launch_bounds__(kColumns* kWarps)
        sum_moments_kernel(SumMoments p) {
    __shared__ double shared[kWarps][kColumns];
    const int64_t d = p.rows.d;
    const int64_t j = int64_t(blockIdx.y) * kColumns + threadIdx.x;
    const bool real = j < d;
    const bool counts = blockIdx.y == 0 && threadIdx.x == 0;
    const double pivot = real ? p.pivot[j] : 0;
    double sum = 0;
    double square = 0;
    double positive = 0;
    double total = 0;
    for (int64_t row = blockIdx.x * kWarps + threadIdx.y; row < p.rows.n;
         row += gridDim.x * kWarps) {
        const float w = p.rows.weight(row);
        if (counts) {
            if (!(w >= 0) || isinf(w)) {
                report(p.first_bad, row * (d + 1));
            }
            positive += w > 0;
            total += w;
        }
        if (real) {
            const float v = p.rows.raw(row * d + j);
            if (!isfinite(v)) {
                report(p.first_bad, row * (d + 1) + 1 + j);
            }
            const double delta = double(v) - pivot;
            sum += w * delta;
            square += w * delta * delta;
        }
    }
    double* part = p.parts + blockIdx.x * SumMoments::sums_size(d);
    sum = sum_over_warps(sum, shared);
    square = sum_over_warps(square, shared);
    if (threadIdx.y == 0 && real) {
        part[j] = sum;
        part[d + j] = square;
    }
    positive = sum_over_warps(positive, shared);
    total = sum_over_warps(total, shared);
    if (threadIdx.y == 0 && counts) {
        part[2 * d] = positive;
        part[2 * d + 1] = total;
    }
}

__global__ void add_parts_kernel(SumMoments p, int64_t parts) {
    const int64_t size = SumMoments::sums_size(p.rows.d);
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < size) {
        double sum = 0;
        for (int64_t part = 0; part < parts; ++part) {
            sum += p.parts[part * size + i];
        }
        p.sums[i] = sum;
    }
}

__global__ void gather_rows_kernel(GatherRows p) {
    const int64_t d = p.rows.d;
    const int64_t size = p.count * d;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
         p.x != nullptr && i < size;
         i += int64_t(gridDim.x) * blockDim.x) {
        p.x[i] = p.rows.raw(p.indices[i / d] * d + i % d);
    }
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
         p.weights != nullptr && i < p.count;
         i += int64_t(gridDim.x) * blockDim.x) {
        p.weights[i] = p.rows.weight(p.indices[i]);
    }
}

} // namespace

void SumMoments::launch(cudaStream_t stream) const {
    FLASHGMM_CUDA(cudaMemsetAsync(first_bad, 0xFF, sizeof(*first_bad), stream));
    const int64_t blocks =
            std::clamp<int64_t>((rows.n + kWarps - 1) / kWarps, 1, kBlocks);
    const dim3 grid(
            unsigned(blocks), unsigned((rows.d + kColumns - 1) / kColumns));
    sum_moments_kernel<<<grid, dim3(kColumns, kWarps), 0, stream>>>(*this);
    FLASHGMM_CUDA_LAUNCHED("sum_moments");
    const int64_t size = sums_size(rows.d);
    add_parts_kernel<<<unsigned((size + 127) / 128), 128, 0, stream>>>(
            *this, blocks);
    FLASHGMM_CUDA_LAUNCHED("add_parts");
}

void GatherRows::launch(cudaStream_t stream) const {
    constexpr int64_t kThreads = 256;
    const int64_t blocks = std::clamp<int64_t>(
            (count * rows.d + kThreads - 1) / kThreads, 1, 1 << 16);
    gather_rows_kernel<<<unsigned(blocks), kThreads, 0, stream>>>(*this);
    FLASHGMM_CUDA_LAUNCHED("gather_rows");
}

} // namespace faiss_flashgmm::gpu
