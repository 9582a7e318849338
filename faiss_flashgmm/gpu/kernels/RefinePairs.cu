#include <faiss_flashgmm/gpu/kernels/RefinePairs.cuh>

#include <algorithm>

#include <faiss_flashgmm/gpu/kernels/Reduce.cuh>
#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

/// Over the lanes of a warp.
__device__ float warp_sum(float v) {
    for (int offset = 16; offset > 0; offset /= 2) {
        v += __shfl_xor_sync(0xFFFFFFFF, v, offset);
    }
    return v;
}

__device__ float logit(const RefinePairs& p, int64_t row, uint32_t component) {
    const int64_t d = p.components.d;
    const float* mean = p.components.means + component * d;
    float distance = 0;
    for (int64_t j = threadIdx.x % 32; j < d; j += 32) {
        const float difference = p.rows.value(row, j) - mean[j];
        distance = fmaf(difference, difference, distance);
    }
    return fmaf(
            -p.components.precision[component],
            warp_sum(distance),
            p.components.offset[component]);
}

/// The m largest logits of a row's pairs, whose values they are at present.
__device__ void write_top(
        const RefinePairs& p,
        int64_t row,
        const Pair* pairs,
        uint32_t count,
        uint64_t best) {
    const int lane = threadIdx.x % 32;
    for (int64_t m = 0; m < p.m; ++m) {
        if (lane == 0) {
            write_ranked(
                    best,
                    p.offset,
                    p.top_components + row * p.m + m,
                    p.log_scores + row * p.m + m);
        }
        uint64_t next = 0;
        for (uint32_t e = lane; m + 1 < p.m && e < count; e += 32) {
            const uint64_t rank = rank_logit(
                    pairs[e].value, pairs[e].bucket % p.out.buckets.k);
            next = rank < best ? max(next, rank) : next;
        }
        for (int offset = 16; offset > 0; offset /= 2) {
            next = max(next, __shfl_xor_sync(0xFFFFFFFF, next, offset));
        }
        best = next;
    }
}

/// A warp works on one row after the other.
__global__ void __launch_bounds__(kThreads) refine_kernel(RefinePairs p) {
    __shared__ RowSums warps[kWarps];
    const int lane = threadIdx.x % 32;
    const bool fits = p.out.state->pairs <= p.out.pairs.capacity;
    RowSums sums;
    for (int64_t row = (blockIdx.x * kThreads + threadIdx.x) / 32;
         fits && row < p.rows.n;
         row += gridDim.x * kWarps) {
        const uint32_t begin = p.ranges.begin[row];
        const uint32_t count = p.ranges.count[row];
        if (count == 0) {
            continue;
        }
        Pair* pairs = p.out.pairs.data + begin;
        uint64_t best = 0;
        for (uint32_t e = 0; e < count; ++e) {
            const uint32_t component = pairs[e].bucket % p.out.buckets.k;
            const float l = logit(p, row, component);
            best = max(best, rank_logit(l, component));
            if (lane == 0) {
                pairs[e].value = l;
            }
        }
        __syncwarp();
        const float largest = ranked_logit(best);
        float z = 0;
        for (uint32_t e = lane; e < count; e += 32) {
            z += exp2f(pairs[e].value - largest);
        }
        z = warp_sum(z);
        const float tail = exp2f(p.ranges.tail[row] - largest);
        const float log2_z = largest + log2f(z + tail);
        const float weight = p.rows.weight(row);
        write_top(p, row, pairs, count, best);
        __syncwarp();
        for (uint32_t e = lane; e < count; e += 32) {
            float& value = pairs[e].value;
            value = weight * (exp2f(value - largest) / z);
        }
        if (lane == 0) {
            const uint32_t component = ranked_component(best);
            const float distance = (p.components.offset[component] - largest) /
                    p.components.precision[component];
            sums.weight += weight;
            sums.log2_z += double(weight) * log2_z;
            sums.objective += double(weight) * fmaxf(distance, 0.0f);
            sums.dropped += double(weight) * (tail / (z + tail));
            if (p.log_z != nullptr) {
                p.log_z[row] = user_log(log2_z, p.offset);
            }
        }
    }
    if (lane == 0) {
        warps[threadIdx.x / 32] = sums;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < kWarps; ++w) {
            sums.weight += warps[w].weight;
            sums.log2_z += warps[w].log2_z;
            sums.objective += warps[w].objective;
            sums.dropped += warps[w].dropped;
        }
        p.out.row_sums[blockIdx.x] = sums;
    }
}

} // namespace

int RefinePairs::blocks() const {
    return int(std::min<int64_t>(
            (rows.n + kWarps - 1) / kWarps, ChunkOutput::kMaxBlocks));
}

void RefinePairs::launch(cudaStream_t stream) const {
    refine_kernel<<<blocks(), kThreads, 0, stream>>>(*this);
    FLASHGMM_CUDA_LAUNCHED("refine_pairs");
}

} // namespace faiss_flashgmm::gpu
