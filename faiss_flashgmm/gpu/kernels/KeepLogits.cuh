#pragma once

#include <cfloat>

#include <faiss_flashgmm/gpu/kernels/SparsePosterior.cuh>
#include <faiss_flashgmm/gpu/ptx/Sm80.cuh>

// What the kernels of pass 1 do with the products of a tile: logits, the row's
// largest, and the groups of logits that are kept. Included by them alone.

namespace faiss_flashgmm::gpu {

/// What is kept besides the logits near a row's largest.
enum class Keep {
    near, ///< nothing
    top,  ///< the m largest logits
    tail, ///< the sum of what is not kept
};

/// What a thread knows of one of its rows. The four threads of a row agree on
/// largest and threshold.
struct RowState {
    float squared;
    float largest;
    float threshold = -FLT_MAX; ///< finite: differences of it must exist
    /// The thread's two largest maxima of groups.
    float top[2] = {-INFINITY, -INFINITY};
    float tail = 0; ///< the thread's, in units of 2^threshold
};

struct KeepOptions {
    float bits_kept;
    int m;
    float slack;
};

/// Joins what the four threads of a row found with the row's state.
template <Keep kKeep>
__device__ __forceinline__ void raise_threshold(
        RowState& row,
        float largest,
        const KeepOptions& keep) {
    // Of the largest, or the two largest, that each of the four threads has,
    // at least m are not below the least of them.
    float bound = keep.m > 4 ? row.top[1] : row.top[0];
#pragma unroll
    for (int offset = 1; offset <= 2; offset *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFF, largest, offset));
        if constexpr (kKeep == Keep::top) {
            bound = fminf(bound, __shfl_xor_sync(0xFFFFFFFF, bound, offset));
        }
    }
    row.largest = fmaxf(row.largest, largest);
    float threshold = row.largest - keep.bits_kept;
    if constexpr (kKeep == Keep::top) {
        threshold = fminf(threshold, bound - keep.slack);
    }
    threshold = fmaxf(threshold, -FLT_MAX);
    if constexpr (kKeep == Keep::tail) {
        row.tail *= exp2f(row.threshold - threshold);
    }
    row.threshold = threshold;
}

/** Turns products into logits and keeps those that may matter.
 *
 * @tparam kColumns of which the thread has 2 (quad lane) + 8 j + i, of two rows
 * @param c         products, that of row h at 4 j + 2 h + i
 * @param constants constants(j): of the components of columns 8 j + 2 (quad
 *                  lane) and the next, precision and y of each
 * @param next      where each row's next group goes; moves on past `end`, but
 *                  nothing is written there
 */
template <Keep kKeep, int kColumns, class Constants>
__device__ __forceinline__ void fold_tile(
        float* c,
        Constants&& constants,
        uint32_t first_component,
        RowState* row,
        const KeepOptions& keep,
        LogitGroup* groups,
        uint32_t* next,
        const uint32_t* end) {
    constexpr int kGroups = kColumns / 32;
    const int quad_lane = threadIdx.x % 4;
    float group_max[2][kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int j = 4 * g; j < 4 * g + 4; ++j) {
            const float4 q = constants(j);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float& a = c[4 * j + 2 * h];
                float& b = c[4 * j + 2 * h + 1];
                a = fmaf(q.x, fmaf(2.0f, a, -row[h].squared), q.y);
                b = fmaf(q.z, fmaf(2.0f, b, -row[h].squared), q.w);
                const float larger = fmaxf(a, b);
                group_max[h][g] =
                        j == 4 * g ? larger : fmaxf(group_max[h][g], larger);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float largest = group_max[h][0];
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const float v = group_max[h][g];
            largest = fmaxf(largest, v);
            if constexpr (kKeep == Keep::top) {
                row[h].top[1] = fmaxf(row[h].top[1], fminf(row[h].top[0], v));
                row[h].top[0] = fmaxf(row[h].top[0], v);
            }
        }
        raise_threshold<kKeep>(row[h], largest, keep);
    }

    // Whole groups, and no branches: testing single logits takes so much code
    // that it no longer fits the instruction cache.
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const bool matters = group_max[h][g] > row[h].threshold;
            const float* l = c + 16 * g + 2 * h;
            ptx::store_if(
                    matters && next[h] < end[h],
                    groups + next[h],
                    {l[0], l[1]},
                    {l[4], l[5]},
                    {l[8], l[9]},
                    {l[12], l[13]},
                    first_component + 32 * g + 2 * quad_lane);
            next[h] += matters;
            if constexpr (kKeep == Keep::tail) {
                float sum = 0;
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    sum += ptx::exp2_fast(l[4 * j] - row[h].threshold) +
                            ptx::exp2_fast(l[4 * j + 1] - row[h].threshold);
                }
                row[h].tail += matters ? 0.0f : sum;
            }
        }
    }
}

/// Writes what a thread has of a finished row.
template <Keep kKeep>
__device__ __forceinline__ void finish_row(
        const KeptLogits& kept,
        int64_t i,
        int part,
        const RowState& row,
        uint32_t region,
        uint32_t begin,
        uint32_t& next,
        uint32_t end) {
    const int quad_lane = threadIdx.x % 4;
    const int64_t at = i * kept.shape.parts + part;
    const uint32_t length = next <= end
            ? min(next - begin, KeptLogits::kOverflow)
            : KeptLogits::kOverflow;
    kept.lists[at * 4 + quad_lane] =
            (begin - region) << KeptLogits::kLengthBits | length;
    next = min(next, end);
    float tail = row.tail;
    if constexpr (kKeep == Keep::tail) {
        tail += __shfl_xor_sync(0xFFFFFFFF, tail, 1);
        tail += __shfl_xor_sync(0xFFFFFFFF, tail, 2);
    }
    if (quad_lane == 0) {
        kept.largest[at] = row.largest;
        if constexpr (kKeep == Keep::tail) {
            kept.tail[at] =
                    tail > 0 ? tail * exp2f(row.threshold - row.largest) : 0.0f;
        }
    }
}

} // namespace faiss_flashgmm::gpu
