#include <faiss_flashgmm/gpu/kernels/PairSums.cuh>

#include <algorithm>

#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kScanThreads = 1024;
constexpr int kBlocks = 132 * 8; // any number works
constexpr int kSlabChunks = 32;  // columns that one warp sums: 256

__host__ __device__ int64_t chunks_of(int64_t d) {
    return (d + HalfLayout::kChunk - 1) / HalfLayout::kChunk;
}
__host__ __device__ int64_t slabs_of(int64_t d) {
    return (chunks_of(d) + kSlabChunks - 1) / kSlabChunks;
}
__host__ __device__ int64_t stride_of(int64_t d) {
    return 1 + slabs_of(d) + d;
}

/// Exclusive sums over the block of two numbers a thread, and their totals.
__device__ uint2 exclusive_sums(uint2 v, uint2& total) {
    __shared__ uint2 warps[kScanThreads / 32];
    const int lane = threadIdx.x % 32;
    uint2 sum = v;
    for (int offset = 1; offset < 32; offset *= 2) {
        const uint32_t x = __shfl_up_sync(0xFFFFFFFF, sum.x, offset);
        const uint32_t y = __shfl_up_sync(0xFFFFFFFF, sum.y, offset);
        if (lane >= offset) {
            sum.x += x;
            sum.y += y;
        }
    }
    __syncthreads();
    if (lane == 31) {
        warps[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    uint2 before = {0, 0};
    total = {0, 0};
    for (int w = 0; w < kScanThreads / 32; ++w) {
        if (w == threadIdx.x / 32) {
            before = total;
        }
        total.x += warps[w].x;
        total.y += warps[w].y;
    }
    return {before.x + sum.x - v.x, before.y + sum.y - v.y};
}

__device__ uint32_t segments_of(uint32_t pairs) {
    return (pairs + PairSums::kSegment - 1) / PairSums::kSegment;
}

/// Each block locates kScanThreads buckets, after counting those before them.
__global__ void __launch_bounds__(kScanThreads) locate_kernel(PairSums p) {
    const bool valid = p.chunk.valid(*p.chunk.state);
    const uint32_t buckets = p.chunk.buckets.count;
    const auto pairs_of = [&](uint32_t bucket) {
        return valid && bucket < buckets
                ? p.chunk.counts[int64_t(bucket) * kCountStride]
                : 0;
    };
    const uint32_t first = blockIdx.x * kScanThreads;
    uint2 earlier = {0, 0}; // pairs, segments
#pragma unroll 4
    for (uint32_t bucket = threadIdx.x; bucket < first;
         bucket += kScanThreads) {
        const uint32_t pairs = pairs_of(bucket);
        earlier.x += pairs;
        earlier.y += segments_of(pairs);
    }
    uint2 base;
    exclusive_sums(earlier, base);

    const uint32_t own = first + threadIdx.x;
    const uint32_t pairs = pairs_of(own);
    const uint32_t segments = segments_of(pairs);
    uint2 total;
    const uint2 before = exclusive_sums({pairs, segments}, total);
    const uint2 at = {base.x + before.x, base.y + before.y};
    if (own < buckets) {
        p.offsets[own] = at.x;
        p.segment_offsets[own] = at.y;
        for (uint32_t s = 0; s < segments; ++s) {
            p.segment_bucket[at.y + s] = own;
        }
    }
    if (own == buckets - 1) {
        p.offsets[buckets] = at.x + pairs;
        p.segment_offsets[buckets] = at.y + segments;
    }
}

__global__ void __launch_bounds__(kThreads) scatter_kernel(PairSums p) {
    const uint32_t pairs = p.offsets[p.chunk.buckets.count];
    const uint32_t step = gridDim.x * kThreads;
    for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < pairs;
         i += step) {
        const Pair pair = p.chunk.pairs.data[i];
        p.sorted[p.offsets[pair.bucket] + pair.rank] = {pair.row, pair.value};
    }
}

/// Eight columns of a row, as they are stored.
template <bool kHalf>
struct Chunk;

template <>
struct Chunk<true> {
    uint4 raw;

    __device__ void load(const PairSums& p, uint32_t row, int64_t c) {
        raw = *reinterpret_cast<const uint4*>(p.half_rows.chunk(row, c));
    }
    __device__ void unpack(const PairSums&, int64_t, float (&x)[8]) const {
        const __half2* h = reinterpret_cast<const __half2*>(&raw);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 f = __half22float2(h[i]);
            x[2 * i] = f.x;
            x[2 * i + 1] = f.y;
        }
    }
};

template <>
struct Chunk<false> {
    float raw[8];

    __device__ void load(const PairSums& p, uint32_t row, int64_t c) {
        const float* x = p.float_rows.x + row * p.components.d;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int64_t j = c * HalfLayout::kChunk + i;
            raw[i] = j < p.components.d ? x[j] : 0.0f;
        }
    }
    __device__ void unpack(const PairSums& p, int64_t c, float (&x)[8]) const {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int64_t j = c * HalfLayout::kChunk + i;
            x[i] = j < p.components.d ? (raw[i] - p.float_rows.shift[j]) *
                            p.float_rows.inverse_scale
                                      : 0.0f;
        }
    }
};

/// A warp sums a segment; kLanes lanes share a row, 8 columns each.
template <bool kHalf, int kLanes>
__global__ void __launch_bounds__(kThreads) sum_kernel(PairSums p) {
    constexpr int kRowsAtOnce = 32 / kLanes;
    constexpr int kInFlight = kHalf ? 8 : 2;
    const int lane = threadIdx.x % 32;
    const int64_t d = p.components.d;
    // Lanes past the columns do the last chunk again: a branch would keep the
    // loads from running ahead.
    const int64_t own_chunk = blockIdx.y * kSlabChunks + lane % kLanes;
    const bool active = own_chunk < chunks_of(d);
    const int64_t c = active ? own_chunk : chunks_of(d) - 1;
    const uint32_t segments = p.segment_offsets[p.chunk.buckets.count];
    const uint32_t warps = gridDim.x * (kThreads / 32);
    for (uint32_t s = (blockIdx.x * kThreads + threadIdx.x) / 32; s < segments;
         s += warps) {
        const uint32_t bucket = p.segment_bucket[s];
        const uint32_t k = bucket % p.chunk.buckets.k;
        const uint32_t begin = p.offsets[bucket] +
                (s - p.segment_offsets[bucket]) * PairSums::kSegment;
        const uint32_t end =
                min(begin + PairSums::kSegment, p.offsets[bucket + 1]);
        float mean[8];
        float sum[8] = {};
        float squared = 0;
        float count = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int64_t j = c * HalfLayout::kChunk + i;
            mean[i] = j < d ? p.components.means[int64_t(k) * d + j] : 0.0f;
        }
        for (uint32_t base = begin; base < end; base += 32) {
            // Lanes past the end take the last pair, with no weight.
            SortedPair own = p.sorted[min(base + lane, end - 1)];
            own.value = base + lane < end ? own.value : 0.0f;
            count += own.value;
            const int rounds =
                    (min(32u, end - base) + kRowsAtOnce - 1) / kRowsAtOnce;
            // Several rows in flight. Past the end the last row comes again.
            for (int first = 0; first < rounds; first += kInFlight) {
                Chunk<kHalf> chunks[kInFlight];
                float values[kInFlight];
#pragma unroll
                for (int t = 0; t < kInFlight; ++t) {
                    const int from = (first + t) * kRowsAtOnce + lane / kLanes;
                    const uint32_t row = __shfl_sync(0xFFFFFFFF, own.row, from);
                    values[t] = __shfl_sync(0xFFFFFFFF, own.value, from);
                    if (from > 31) {
                        values[t] = 0;
                    }
                    chunks[t].load(p, row, c);
                }
#pragma unroll
                for (int t = 0; t < kInFlight; ++t) {
                    float x[8];
                    chunks[t].unpack(p, c, x);
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
                        const float difference = x[i] - mean[i];
                        const float weighted = values[t] * difference;
                        sum[i] += weighted;
                        squared = fmaf(weighted, difference, squared);
                    }
                }
            }
        }
        squared = active ? squared : 0.0f;
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            squared += __shfl_xor_sync(0xFFFFFFFF, squared, offset);
            count += __shfl_xor_sync(0xFFFFFFFF, count, offset);
            if (offset >= kLanes) {
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    sum[i] += __shfl_xor_sync(0xFFFFFFFF, sum[i], offset);
                }
            }
        }
        float* out = p.partial + s * stride_of(d);
        if (lane == 0) {
            if (blockIdx.y == 0) {
                out[0] = count;
            }
            out[1 + blockIdx.y] = squared;
        }
        if (lane < kLanes && active) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int64_t j = c * HalfLayout::kChunk + i;
                if (j < d) {
                    out[1 + slabs_of(d) + j] = sum[i];
                }
            }
        }
    }
}

/// Adds what the blocks of pass 1 summed, in fixed order.
__device__ void add_row_sums(const PairSums& p) {
    __shared__ double shared[kThreads];
    constexpr int kFields = sizeof(RowSums) / sizeof(double);
    const double* sums = reinterpret_cast<const double*>(p.chunk.row_sums);
    double* out = p.stats + p.components.k * (p.components.d + 2);
    for (int field = 0; field < kFields; ++field) {
        double own = 0;
        for (int b = threadIdx.x; b < p.row_sum_blocks; b += blockDim.x) {
            own += sums[b * kFields + field];
        }
        shared[threadIdx.x] = own;
        __syncthreads();
        for (int half = blockDim.x / 2; half > 0; half /= 2) {
            if (threadIdx.x < half) {
                shared[threadIdx.x] += shared[threadIdx.x + half];
            }
            __syncthreads();
        }
        if (threadIdx.x == 0) {
            out[field] += shared[0];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        out[kFields] += p.chunk.state->pairs;
    }
}

/// Block k adds the segments of component k; one more block, the row sums.
__global__ void add_segments_kernel(PairSums p) {
    if (!p.chunk.valid(*p.chunk.state)) {
        return;
    }
    const int64_t k = blockIdx.x;
    const int64_t d = p.components.d;
    if (k == p.components.k) {
        add_row_sums(p);
        return;
    }
    const int64_t stride = stride_of(d);
    const int64_t slabs = slabs_of(d);
    __shared__ double count;
    // Column 0 comes in the first round and is shared then.
    for (int64_t first = 0; first < stride; first += blockDim.x) {
        const int64_t column = first + threadIdx.x;
        double sum = 0;
        // In fixed order: stretch by stretch, segment by segment.
        for (uint32_t bucket = k; bucket < p.chunk.buckets.count;
             bucket += p.chunk.buckets.k) {
            const uint32_t end = p.segment_offsets[bucket + 1];
            for (uint32_t s = p.segment_offsets[bucket]; s < end; ++s) {
                const float* part = p.partial + s * stride;
                sum += column < stride ? part[column] : 0.0f;
                for (int64_t t = 1; column == 1 && t < slabs; ++t) {
                    sum += part[1 + t];
                }
            }
        }
        if (column == 0) {
            count = sum;
            p.stats[k] += sum;
        }
        __syncthreads();
        if (column == 1) {
            p.stats[p.components.k + k] += sum; // of all slabs
        } else if (column > slabs && column < stride) {
            const int64_t j = column - 1 - slabs;
            p.stats[p.components.k * 2 + k * d + j] +=
                    sum + count * p.components.means[k * d + j];
        }
    }
}

template <bool kHalf>
void launch_sum(const PairSums& p, cudaStream_t stream) {
    const int64_t chunks = chunks_of(p.components.d);
    const dim3 grid(kBlocks, unsigned(slabs_of(p.components.d)));
    const auto kernel = chunks <= 4 ? sum_kernel<kHalf, 4>
            : chunks <= 8           ? sum_kernel<kHalf, 8>
            : chunks <= 16          ? sum_kernel<kHalf, 16>
                                    : sum_kernel<kHalf, 32>;
    kernel<<<grid, kThreads, 0, stream>>>(p);
    FLASHGMM_CUDA_LAUNCHED("sum_pairs");
}

} // namespace

int64_t PairSums::partial_stride(int64_t d) {
    return stride_of(d);
}

void PairSums::locate(cudaStream_t stream) const {
    const uint32_t blocks =
            (chunk.buckets.count + kScanThreads - 1) / kScanThreads;
    locate_kernel<<<blocks, kScanThreads, 0, stream>>>(*this);
    FLASHGMM_CUDA_LAUNCHED("locate_pairs");
}

void PairSums::scatter(cudaStream_t stream) const {
    scatter_kernel<<<kBlocks, kThreads, 0, stream>>>(*this);
    FLASHGMM_CUDA_LAUNCHED("scatter_pairs");
}

void PairSums::sum(cudaStream_t stream) const {
    if (half_rows.x != nullptr) {
        launch_sum<true>(*this, stream);
    } else {
        launch_sum<false>(*this, stream);
    }
    const int threads = components.d > 126 ? 256 : 128; // powers of two
    add_segments_kernel<<<unsigned(components.k + 1), threads, 0, stream>>>(
            *this);
    FLASHGMM_CUDA_LAUNCHED("add_segments");
}

} // namespace faiss_flashgmm::gpu
