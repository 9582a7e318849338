#pragma once

#include <cstdint>

// Reductions over a block of kThreads threads; every thread gets the result.

namespace faiss_flashgmm::gpu {

template <int kThreads, class T, class Op>
__device__ T block_reduce(T v, Op op) {
    __shared__ T warps[kThreads / 32];
    for (int offset = 16; offset > 0; offset /= 2) {
        v = op(v, __shfl_xor_sync(0xFFFFFFFF, v, offset));
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = v;
    }
    __syncthreads();
    v = warps[0];
    for (int w = 1; w < kThreads / 32; ++w) {
        v = op(v, warps[w]);
    }
    return v;
}

template <int kThreads, class T>
__device__ T block_sum(T v) {
    return block_reduce<kThreads>(v, [](T a, T b) { return a + b; });
}

/// A logit and its component as one number: the larger logit is the larger
/// number, and among equal ones the lower component.
__device__ inline uint64_t rank_logit(float logit, uint32_t component) {
    uint32_t bits = __float_as_uint(logit);
    bits ^= bits & 0x80000000u ? 0xFFFFFFFFu : 0x80000000u;
    return uint64_t(bits) << 32 | (0xFFFFFFFFu - component);
}
__device__ inline uint32_t ranked_component(uint64_t rank) {
    return 0xFFFFFFFFu - uint32_t(rank);
}
__device__ inline float ranked_logit(uint64_t rank) {
    uint32_t bits = uint32_t(rank >> 32);
    bits ^= bits & 0x80000000u ? 0x80000000u : 0xFFFFFFFFu;
    return __uint_as_float(bits);
}

constexpr double kLn2 = 0.693147180559945309417;

/// A log2-density of conditioned units as natural log in the user's units.
__device__ inline float user_log(float log2, float offset) {
    return float(double(log2) * kLn2) + offset;
}

/// A component without weight, or none at all, becomes -1 with -infinity.
__device__ inline void write_ranked(
        uint64_t rank,
        float offset,
        int64_t* component,
        float* log_score) {
    const bool real = rank != 0 && ranked_logit(rank) > -INFINITY;
    *component = real ? int64_t(ranked_component(rank)) : -1;
    *log_score = real ? user_log(ranked_logit(rank), offset) : -INFINITY;
}

} // namespace faiss_flashgmm::gpu
