#include <faiss_flashgmm/gpu/kernels/PairSums.cuh>

#include <algorithm>

#include <faiss_flashgmm/gpu/ptx/Sm80.cuh>
#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kScanThreads = 1024;
constexpr int kScatterBlocks = 132 * 8; // any number works
constexpr int kSlabChunks = 32;         // columns that one warp sums: 256

__host__ __device__ int64_t chunks_of(int64_t d) {
    return (d + HalfLayout::kChunk - 1) / HalfLayout::kChunk;
}
__host__ __device__ int64_t slabs_of(int64_t d) {
    return (chunks_of(d) + kSlabChunks - 1) / kSlabChunks;
}
__host__ __device__ int64_t stride_of(int64_t d) {
    return 1 + slabs_of(d) + d;
}

/// What a bucket needs.
struct Needs {
    uint32_t listed;   ///< pairs that are to be sorted
    uint32_t segments; ///< of all its pairs
    uint32_t room;     ///< the next time

    __device__ Needs operator+(const Needs& o) const {
        return {listed + o.listed, segments + o.segments, room + o.room};
    }
    __device__ Needs operator-(const Needs& o) const {
        return {listed - o.listed, segments - o.segments, room - o.room};
    }
};

/// Exclusive sums over the block, and the total.
__device__ Needs exclusive_sums(const Needs& v, Needs& total) {
    __shared__ Needs warps[kScanThreads / 32];
    const int lane = threadIdx.x % 32;
    Needs sum = v;
    for (int offset = 1; offset < 32; offset *= 2) {
        const Needs other = {
                __shfl_up_sync(0xFFFFFFFF, sum.listed, offset),
                __shfl_up_sync(0xFFFFFFFF, sum.segments, offset),
                __shfl_up_sync(0xFFFFFFFF, sum.room, offset)};
        if (lane >= offset) {
            sum = sum + other;
        }
    }
    __syncthreads();
    if (lane == 31) {
        warps[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    Needs before = {};
    total = {};
    for (int w = 0; w < kScanThreads / 32; ++w) {
        if (w == threadIdx.x / 32) {
            before = total;
        }
        total = total + warps[w];
    }
    return before + sum - v;
}

__device__ uint32_t segments_of(uint32_t pairs) {
    return (pairs + PairSums::kSegment - 1) / PairSums::kSegment;
}

/// Writes the segments of pairs [begin, end).
__device__ void write_segments(
        Segment* to,
        uint32_t bucket,
        uint32_t begin,
        uint32_t end) {
    for (; begin < end; begin += PairSums::kSegment) {
        *to++ = {bucket, begin, min(begin + PairSums::kSegment, end)};
    }
}

/// Each block locates kScanThreads buckets, after counting those before them.
__global__ void __launch_bounds__(kScanThreads) locate_kernel(PairSums p) {
    const bool valid = p.chunk.valid(*p.chunk.state);
    const uint32_t buckets = p.chunk.buckets.count;
    const auto pairs_of = [&](uint32_t bucket) {
        return valid ? p.chunk.counts[int64_t(bucket) * kCountStride] : 0;
    };
    const auto needs_of = [&](uint32_t bucket) -> Needs {
        const uint32_t pairs = pairs_of(bucket);
        const uint32_t placed = min(pairs, p.chunk.room_of(bucket));
        return {pairs - placed,
                segments_of(placed) + segments_of(pairs - placed),
                pairs + pairs / PairSums::kSlack + PairSums::kSpare};
    };
    const uint32_t first = blockIdx.x * kScanThreads;
    Needs earlier = {};
#pragma unroll 4
    for (uint32_t bucket = threadIdx.x; bucket < first;
         bucket += kScanThreads) {
        earlier = earlier + needs_of(bucket);
    }
    Needs base;
    exclusive_sums(earlier, base);

    const uint32_t own = first + threadIdx.x;
    const Needs needs = own < buckets ? needs_of(own) : Needs{};
    Needs total;
    const Needs at = base + exclusive_sums(needs, total);
    if (own < buckets) {
        p.offsets[own] = at.listed;
        p.segment_offsets[own] = at.segments;
        const uint32_t placed = pairs_of(own) - needs.listed;
        const uint32_t begin = p.chunk.room != nullptr ? p.chunk.room[own] : 0;
        const uint32_t listed = p.chunk.room_end() + at.listed;
        Segment* segments = p.segments + at.segments;
        write_segments(segments, own, begin, begin + placed);
        write_segments(
                segments + segments_of(placed),
                own,
                listed,
                listed + needs.listed);
        if (p.next_room != nullptr) {
            p.next_room[own] = min(at.room, p.room_limit);
        }
    }
    if (own == buckets - 1) {
        p.offsets[buckets] = at.listed + needs.listed;
        p.segment_offsets[buckets] = at.segments + needs.segments;
        if (p.next_room != nullptr) {
            p.next_room[buckets] = min(at.room + needs.room, p.room_limit);
        }
    }
}

__global__ void __launch_bounds__(kThreads) scatter_kernel(PairSums p) {
    const uint32_t listed = p.offsets[p.chunk.buckets.count];
    SortedPair* sorted = p.chunk.sorted + p.chunk.room_end();
    const uint32_t step = gridDim.x * kThreads;
    for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < listed;
         i += step) {
        const Pair pair = p.chunk.pairs.data[i];
        sorted[p.offsets[pair.bucket] + pair.rank] = {pair.row, pair.value};
    }
}

/// 32 pairs from `at` on, one a lane. Lanes past the end take the last pair,
/// with no weight.
__device__ __forceinline__ SortedPair
fetch_pairs(const PairSums& p, const Segment& segment, uint32_t at) {
    at += threadIdx.x % 32;
    SortedPair pair = p.chunk.sorted[min(at, segment.end - 1)];
    pair.value = at < segment.end ? pair.value : 0.0f;
    return pair;
}

/** Chunks of fp16 rows on their way to a warp; kLanes lanes share a row.
 *
 * They go through shared memory, because the compiler does not keep loads to
 * registers apart from each other. A lane reads only what it copied itself.
 */
template <int kLanes>
struct HalfRing {
    static constexpr int kStages = 3;
    static constexpr int kRowsAtOnce = 32 / kLanes;
    static constexpr int kSize = kLanes < 8 ? 2 : 4; ///< chunks of a stage
    static constexpr uint32_t kPairs = kSize * kRowsAtOnce;
    /// Values of a stage are among the last 64 fetched when it is used.
    static_assert((kStages - 1) * kPairs <= 32);

    uint4 chunks[kStages][kSize][32];
};

/// Calls visit(eight columns, value) for all pairs of a segment. The lanes of
/// a row take its columns, each from 8 c on.
template <int kLanes, class Visit>
__device__ __forceinline__ void for_half_rows(
        const PairSums& p,
        const Segment& segment,
        int64_t c,
        HalfRing<kLanes>& ring,
        Visit&& visit) {
    using Ring = HalfRing<kLanes>;
    const int lane = threadIdx.x % 32;
    const int stages = int(
            (segment.end - segment.begin + Ring::kPairs - 1) / Ring::kPairs);
    SortedPair coming = fetch_pairs(p, segment, segment.begin);
    SortedPair own = {};
    float former = 0; // value
    const auto start = [&](int stage) {
        if (stage < stages) {
            const uint32_t first = stage * Ring::kPairs;
            if (first % 32 == 0) {
                former = own.value;
                own = coming;
                coming = fetch_pairs(p, segment, segment.begin + first + 32);
            }
#pragma unroll
            for (int t = 0; t < Ring::kSize; ++t) {
                const int from =
                        first % 32 + t * Ring::kRowsAtOnce + lane / kLanes;
                const uint32_t row = __shfl_sync(0xFFFFFFFF, own.row, from);
                ptx::async_copy(
                        &ring.chunks[stage % Ring::kStages][t][lane],
                        p.half_rows.chunk(row, c));
            }
        }
        ptx::async_commit();
    };
#pragma unroll
    for (int stage = 0; stage < Ring::kStages - 1; ++stage) {
        start(stage);
    }
    for (int stage = 0; stage < stages; ++stage) {
        const int last = min(stage + Ring::kStages - 1, stages - 1);
        start(stage + Ring::kStages - 1);
        ptx::async_wait<Ring::kStages - 1>();
        const uint32_t first = stage * Ring::kPairs;
        const float values =
                first / 32 == last * Ring::kPairs / 32 ? own.value : former;
#pragma unroll
        for (int t = 0; t < Ring::kSize; ++t) {
            const int from = first % 32 + t * Ring::kRowsAtOnce + lane / kLanes;
            const uint4 raw = ring.chunks[stage % Ring::kStages][t][lane];
            const __half2* h = reinterpret_cast<const __half2*>(&raw);
            float x[8];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 f = __half22float2(h[i]);
                x[2 * i] = f.x;
                x[2 * i + 1] = f.y;
            }
            visit(x, __shfl_sync(0xFFFFFFFF, values, from));
        }
    }
}

/// The same for the rows as they came.
template <int kLanes, class Visit>
__device__ __forceinline__ void for_source_rows(
        const PairSums& p,
        const Segment& segment,
        int64_t c,
        Visit&& visit) {
    constexpr int kRowsAtOnce = 32 / kLanes;
    for (uint32_t at = segment.begin; at < segment.end; at += 32) {
        const SortedPair own = fetch_pairs(p, segment, at);
        const int pairs = min(32u, segment.end - at);
        for (int first = 0; first < pairs; first += kRowsAtOnce) {
            const int from = first + threadIdx.x % 32 / kLanes;
            const uint32_t row = __shfl_sync(0xFFFFFFFF, own.row, from);
            float x[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int64_t j = c * HalfLayout::kChunk + i;
                x[i] = j < p.components.d ? p.source_rows.value(row, j) : 0.0f;
            }
            visit(x, __shfl_sync(0xFFFFFFFF, own.value, from));
        }
    }
}

/// A warp sums a segment; kLanes lanes share a row, 8 columns each.
template <bool kHalf, int kLanes>
__global__ void __launch_bounds__(kThreads, 4) sum_kernel(PairSums p) {
    __shared__ HalfRing<kLanes> rings[kHalf ? kThreads / 32 : 1];
    const int lane = threadIdx.x % 32;
    const int64_t d = p.components.d;
    // Lanes past the columns do the last chunk again.
    const int64_t own_chunk = blockIdx.y * kSlabChunks + lane % kLanes;
    const bool active = own_chunk < chunks_of(d);
    const int64_t c = active ? own_chunk : chunks_of(d) - 1;
    const uint32_t segments = p.segment_offsets[p.chunk.buckets.count];
    const uint32_t warps = gridDim.x * (kThreads / 32);
    for (uint32_t s = (blockIdx.x * kThreads + threadIdx.x) / 32; s < segments;
         s += warps) {
        const Segment segment = p.segments[s];
        const uint32_t k = segment.bucket % p.chunk.buckets.k;
        float mean[8];
        float sum[8] = {};
        float squared = 0;
        float count = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int64_t j = c * HalfLayout::kChunk + i;
            mean[i] = j < d ? p.components.means[int64_t(k) * d + j] : 0.0f;
        }
        const auto add = [&](const float(&x)[8], float value) {
            count += value;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float difference = x[i] - mean[i];
                const float weighted = value * difference;
                sum[i] += weighted;
                squared = fmaf(weighted, difference, squared);
            }
        };
        if constexpr (kHalf) {
            for_half_rows<kLanes>(p, segment, c, rings[threadIdx.x / 32], add);
        } else {
            for_source_rows<kLanes>(p, segment, c, add);
        }
        squared = active ? squared : 0.0f;
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            squared += __shfl_xor_sync(0xFFFFFFFF, squared, offset);
            if (offset >= kLanes) {
                count += __shfl_xor_sync(0xFFFFFFFF, count, offset);
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
    // About a segment for each warp. Blocks start in order, so the rows that
    // are gathered at a time are those of one stretch.
    constexpr int64_t kWarps = kThreads / 32;
    const int64_t segments =
            p.expected_pairs / PairSums::kSegment + p.chunk.buckets.count;
    const dim3 grid(
            unsigned(std::clamp<int64_t>(segments / kWarps, 132, 1 << 20)),
            unsigned(slabs_of(p.components.d)));
    const auto kernel = chunks <= 4 ? sum_kernel<kHalf, 4>
            : chunks <= 8           ? sum_kernel<kHalf, 8>
            : chunks <= 16          ? sum_kernel<kHalf, 16>
                                    : sum_kernel<kHalf, 32>;
    FLASHGMM_CUDA(cudaFuncSetAttribute(
            kernel,
            cudaFuncAttributePreferredSharedMemoryCarveout,
            cudaSharedmemCarveoutMaxShared));
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
    scatter_kernel<<<kScatterBlocks, kThreads, 0, stream>>>(*this);
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
