#include <faiss_flashgmm/gpu/kernels/NearDistances.cuh>

#include <bit>

#include <faiss_flashgmm/gpu/kernels/Reduce.cuh>
#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace {

constexpr int kThreads = 128; // of a row
constexpr int kWarps = kThreads / 32;
constexpr int kAtOnce = 4; // candidates of a warp

/// Coordinates, of floats alone or of any rows.
template <bool kFloats>
__device__ __forceinline__ float coordinate(const SourceRows& x, int64_t i) {
    return kFloats ? static_cast<const float*>(x.x)[i] : x.raw(i);
}

/// Calls visit(candidate, base row, distance) in one lane of a warp for each
/// candidate of a row. A distance depends on nothing but its two rows.
template <bool kFloats, class Visit>
__device__ void measure(
        const NearPairs& p,
        int64_t row,
        uint32_t count,
        Visit&& visit) {
    const CandidatePlaces& from = p.candidates;
    const int lane = threadIdx.x % 32;
    const int64_t d = p.rows.d;
    for (uint32_t first = threadIdx.x / 32 * kAtOnce; first < count;
         first += kWarps * kAtOnce) {
        // A lane finds the row of one, because that is a division.
        const uint32_t c = min(first + lane % kAtOnce, count - 1);
        const uint32_t own = p.order.row(
                from.counts ? from.places[row * from.capacity + c]
                            : from.begin + c);
        uint32_t base[kAtOnce];
        float sums[kAtOnce] = {};
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            base[i] = __shfl_sync(0xFFFFFFFF, own, i);
        }
#pragma unroll 2
        for (int64_t j = lane; j < d; j += 32) {
            const float x = coordinate<kFloats>(p.rows, row * d + j);
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const float y = coordinate<kFloats>(p.base, base[i] * d + j);
                const float difference = x - y;
                sums[i] = p.inner_product
                        ? fmaf(-x, y, sums[i])
                        : fmaf(difference, difference, sums[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            for (int offset = 16; offset > 0; offset /= 2) {
                sums[i] += __shfl_xor_sync(0xFFFFFFFF, sums[i], offset);
            }
            if (lane == i && first + i < count) {
                visit(first + i, base[i], sums[i]);
            }
        }
    }
}

/// By the block; size is a power of two.
__device__ void sort_descending(uint64_t* keys, uint32_t size) {
    for (uint32_t width = 2; width <= size; width *= 2) {
        for (uint32_t step = width / 2; step > 0; step /= 2) {
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < size / 2; i += kThreads) {
                const uint32_t low = 2 * i - (i & (step - 1));
                const uint64_t a = keys[low];
                const uint64_t b = keys[low + step];
                if ((a < b) == ((low & width) == 0)) {
                    keys[low] = b;
                    keys[low + step] = a;
                }
            }
        }
    }
    __syncthreads();
}

template <bool kFloats>
__global__ void __launch_bounds__(kThreads) select_kernel(SelectNearest p) {
    extern __shared__ uint64_t keys[];
    const int64_t row = blockIdx.x;
    const CandidatePlaces& from = p.pairs.candidates;
    const uint32_t count = from.counts ? from.counts[row] : from.count;
    if (count == 0) {
        return;
    }
    const uint32_t k = uint32_t(p.k);
    uint32_t size = 2;
    while (size < k + count) {
        size *= 2;
    }
    uint64_t* best = p.best + row * p.k;
    for (uint32_t i = threadIdx.x; i < size; i += kThreads) {
        if (i < k || i >= k + count) {
            keys[i] = i < k ? best[i] : 0;
        }
    }
    const int64_t self = p.self ? p.self[row] : -1;
    measure<kFloats>(
            p.pairs,
            row,
            count,
            [&](uint32_t c, uint32_t base, float distance) {
                keys[k + c] = int64_t(base) == self || isnan(distance)
                        ? 0
                        : rank_logit(0.0f - distance, base);
            });
    sort_descending(keys, size);
    for (uint32_t i = threadIdx.x; i < k; i += kThreads) {
        best[i] = keys[i];
    }
    if (threadIdx.x == 0 && p.least != nullptr) {
        const uint64_t last = keys[k - 1];
        p.least[row] = last == 0 ? -INFINITY
                                 : p.bounds.least_product(
                                           0.0f - ranked_logit(last),
                                           p.rounded.half.squared[row],
                                           p.rounded.errors[row],
                                           p.base_extent);
    }
}

__global__ void __launch_bounds__(kThreads) unpack_kernel(UnpackNearest p) {
    const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
    if (i < p.size) {
        const uint64_t key = p.best[i];
        if (p.distances != nullptr) {
            p.distances[i] = key == 0 ? INFINITY : 0.0f - ranked_logit(key);
        }
        if (p.ids != nullptr) {
            p.ids[i] = key == 0 ? -1 : int64_t(ranked_component(key));
        }
    }
}

template <bool kFloats>
__global__ void __launch_bounds__(kThreads) measure_kernel(MeasureNear p) {
    __shared__ NearRow near[MeasureNear::kCandidates];
    __shared__ uint32_t found;
    __shared__ uint32_t begin;
    const int64_t row = blockIdx.x;
    const CandidatePlaces& from = p.pairs.candidates;
    const uint32_t count = from.counts ? from.counts[row] : from.count;
    if (threadIdx.x == 0) {
        found = 0;
    }
    __syncthreads();
    measure<kFloats>(
            p.pairs, row, count, [&](uint32_t, uint32_t base, float distance) {
                if (distance <= p.radii[base]) {
                    near[atomicAdd(&found, 1u)] = {base, distance};
                }
            });
    __syncthreads();
    if (threadIdx.x == 0) {
        begin = atomicAdd(p.total, found);
        p.begins[row] = begin;
        p.counts[row] = found;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < found; i += kThreads) {
        if (begin + i < p.capacity) {
            p.near[begin + i] = near[i];
        }
    }
}

bool are_floats(const NearPairs& pairs) {
    return pairs.rows.type == RowType::float32 &&
            pairs.base.type == RowType::float32;
}

} // namespace

void SelectNearest::launch(cudaStream_t stream) const {
    const uint32_t most = pairs.candidates.counts ? pairs.candidates.capacity
                                                  : pairs.candidates.count;
    const size_t bytes = std::bit_ceil(uint64_t(most) + k) * sizeof(uint64_t);
    const auto kernel =
            are_floats(pairs) ? select_kernel<true> : select_kernel<false>;
    kernel<<<unsigned(pairs.rows.n), kThreads, bytes, stream>>>(*this);
    FLASHGMM_CUDA_LAUNCHED("select_nearest");
}

void UnpackNearest::launch(cudaStream_t stream) const {
    unpack_kernel<<<
            unsigned((size + kThreads - 1) / kThreads),
            kThreads,
            0,
            stream>>>(*this);
    FLASHGMM_CUDA_LAUNCHED("unpack_nearest");
}

void MeasureNear::launch(cudaStream_t stream) const {
    const auto kernel =
            are_floats(pairs) ? measure_kernel<true> : measure_kernel<false>;
    kernel<<<unsigned(pairs.rows.n), kThreads, 0, stream>>>(*this);
    FLASHGMM_CUDA_LAUNCHED("measure_near");
}

} // namespace faiss_flashgmm::gpu
