#include <faiss_flashgmm/gpu/kernels/DensePosterior.cuh>

#include <algorithm>
#include <cfloat>

#include <faiss_flashgmm/gpu/kernels/Reduce.cuh>
#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kTile = 64;  // rows, and components, of a block
constexpr int kDepth = 16; // columns in shared memory at a time
constexpr int kOfThread = 4;
constexpr int kMaxGridRows = 65535;

__device__ int64_t row_of(const DensePosterior& p, int64_t i) {
    return p.list != nullptr ? p.list[i] : p.first + i;
}

/// Each thread has 4 x 4 logits of a 64 x 64 tile.
__global__ void __launch_bounds__(kThreads) logits_kernel(DensePosterior p) {
    __shared__ float x[kDepth][kTile + 1];
    __shared__ float m[kDepth][kTile + 1];
    const int64_t d = p.components.d;
    const int64_t k = p.components.k;
    const int64_t first_component = int64_t(blockIdx.x) * kTile;
    const int tx = threadIdx.x % 16;
    const int ty = threadIdx.x / 16;
    const int64_t step = int64_t(gridDim.y) * kTile;
    for (int64_t first_row = int64_t(blockIdx.y) * kTile; first_row < p.count;
         first_row += step) {
        float distance[kOfThread][kOfThread] = {};
        for (int64_t j0 = 0; j0 < d; j0 += kDepth) {
            __syncthreads();
            for (int e = threadIdx.x; e < kTile * kDepth; e += kThreads) {
                const int r = e / kDepth;
                const int64_t j = j0 + e % kDepth;
                const bool row = first_row + r < p.count && j < d;
                const bool component = first_component + r < k && j < d;
                x[e % kDepth][r] =
                        row ? p.rows.value(row_of(p, first_row + r), j) : 0.0f;
                m[e % kDepth][r] = component
                        ? p.components.means[(first_component + r) * d + j]
                        : 0.0f;
            }
            __syncthreads();
#pragma unroll
            for (int j = 0; j < kDepth; ++j) {
#pragma unroll
                for (int a = 0; a < kOfThread; ++a) {
#pragma unroll
                    for (int b = 0; b < kOfThread; ++b) {
                        const float difference =
                                x[j][ty + 16 * a] - m[j][tx + 16 * b];
                        distance[a][b] =
                                fmaf(difference, difference, distance[a][b]);
                    }
                }
            }
        }
        for (int b = 0; b < kOfThread; ++b) {
            const int64_t component = first_component + tx + 16 * b;
            if (component >= k) {
                continue;
            }
            const float precision = p.components.precision[component];
            const float offset = p.components.offset[component];
            for (int a = 0; a < kOfThread; ++a) {
                const int64_t i = first_row + ty + 16 * a;
                if (i < p.count) {
                    // Finite, so that a row far from everything has a Z,
                    // unless the component has no weight.
                    p.logits[i * k + component] = offset > -INFINITY
                            ? fmaxf(fmaf(-precision, distance[a][b], offset),
                                    -FLT_MAX)
                            : offset;
                }
            }
        }
    }
}

struct Softmax {
    uint64_t best; ///< rank_logit of the largest
    float z;       ///< sum of 2^(logit - largest)

    __device__ float log2_z() const {
        return ranked_logit(best) + log2f(z);
    }
};

__device__ Softmax softmax(const float* logits, int64_t k) {
    uint64_t best = 0;
    for (int64_t c = threadIdx.x; c < k; c += kThreads) {
        best = max(best, rank_logit(logits[c], uint32_t(c)));
    }
    best = block_reduce<kThreads>(
            best, [](uint64_t a, uint64_t b) { return max(a, b); });
    const float largest = ranked_logit(best);
    float z = 0;
    for (int64_t c = threadIdx.x; c < k; c += kThreads) {
        z += exp2f(logits[c] - largest);
    }
    return {best, block_sum<kThreads>(z)};
}

__global__ void __launch_bounds__(kThreads) pairs_kernel(DensePairs p) {
    __shared__ uint32_t begin;
    const int64_t k = p.posterior.components.k;
    RowSums sums;
    for (int64_t i = blockIdx.x; i < p.posterior.count; i += gridDim.x) {
        const float* logits = p.posterior.logits + i * k;
        const int64_t row = row_of(p.posterior, i);
        const float weight = p.posterior.rows.weight(row);
        const Softmax s = softmax(logits, k);
        const float largest = ranked_logit(s.best);
        uint32_t kept = 0;
        float mass = 0;
        for (int64_t c = threadIdx.x; c < k; c += kThreads) {
            const float r = exp2f(logits[c] - largest) / s.z;
            kept += r > p.min_responsibility;
            mass += r > p.min_responsibility ? r : 0.0f;
        }
        mass = block_sum<kThreads>(mass);
        const uint32_t total = block_sum<kThreads>(kept);
        if (threadIdx.x == 0) {
            begin = atomicAdd(&p.out.state->listed, total);
            atomicAdd(&p.out.state->pairs, total);
        }
        __syncthreads();
        // The order within a row does not matter: it has one pair at most of
        // each component.
        if (uint64_t(begin) + total <= p.out.pairs.capacity) {
            __shared__ uint32_t next;
            if (threadIdx.x == 0) {
                next = begin;
            }
            __syncthreads();
            for (int64_t c = threadIdx.x; c < k; c += kThreads) {
                const float r = exp2f(logits[c] - largest) / s.z;
                if (r > p.min_responsibility) {
                    const uint32_t to = atomicAdd(&next, 1u);
                    p.out.list_pair(
                            to,
                            uint32_t(c),
                            uint32_t(row),
                            weight * (r / mass));
                }
            }
        }
        if (threadIdx.x == 0) {
            const uint32_t c = ranked_component(s.best);
            if (p.best != nullptr) {
                p.best[row] = c;
            }
            const float distance =
                    (p.posterior.components.offset[c] - largest) /
                    p.posterior.components.precision[c];
            sums.weight += weight;
            sums.log2_z += double(weight) * s.log2_z();
            sums.objective += double(weight) * fmaxf(distance, 0.0f);
            sums.dropped += double(weight) * fmaxf(1.0f - mass, 0.0f);
        }
    }
    if (threadIdx.x == 0) {
        p.out.row_sums[blockIdx.x] = sums;
    }
}

/// Takes the largest logit m times.
__global__ void __launch_bounds__(kThreads) top_kernel(DenseTop p) {
    const int64_t k = p.posterior.components.k;
    for (int64_t i = blockIdx.x; i < p.posterior.count; i += gridDim.x) {
        const float* logits = p.posterior.logits + i * k;
        const int64_t out =
                p.posterior.list != nullptr ? p.posterior.list[i] : i;
        Softmax s = softmax(logits, k);
        const float log2_z = s.log2_z();
        for (int64_t e = 0; e < p.m; ++e) {
            if (threadIdx.x == 0) {
                write_ranked(
                        s.best,
                        p.offset,
                        p.components + out * p.m + e,
                        p.log_scores + out * p.m + e);
            }
            uint64_t next = 0;
            for (int64_t c = threadIdx.x; c < k; c += kThreads) {
                const uint64_t rank = rank_logit(logits[c], uint32_t(c));
                next = rank < s.best ? max(next, rank) : next;
            }
            s.best = block_reduce<kThreads>(
                    next, [](uint64_t a, uint64_t b) { return max(a, b); });
        }
        if (threadIdx.x == 0 && p.log_z != nullptr) {
            p.log_z[out] = user_log(log2_z, p.offset);
        }
    }
}

} // namespace

int64_t DensePosterior::rows_in(int64_t logits_size, int64_t k) {
    return std::max<int64_t>(1, logits_size / k);
}

void DensePosterior::launch(cudaStream_t stream) const {
    const dim3 grid(
            unsigned((components.k + kTile - 1) / kTile),
            unsigned(std::min<int64_t>(
                    (count + kTile - 1) / kTile, kMaxGridRows)));
    logits_kernel<<<grid, kThreads, 0, stream>>>(*this);
    FLASHGMM_CUDA_LAUNCHED("dense_logits");
}

int DensePairs::blocks() const {
    return int(std::min<int64_t>(posterior.count, ChunkOutput::kMaxBlocks));
}

void DensePairs::launch(cudaStream_t stream) const {
    pairs_kernel<<<blocks(), kThreads, 0, stream>>>(*this);
    FLASHGMM_CUDA_LAUNCHED("dense_pairs");
}

void DenseTop::launch(cudaStream_t stream) const {
    const auto blocks = unsigned(
            std::min<int64_t>(posterior.count, ChunkOutput::kMaxBlocks));
    top_kernel<<<blocks, kThreads, 0, stream>>>(*this);
    FLASHGMM_CUDA_LAUNCHED("dense_top");
}

} // namespace faiss_flashgmm::gpu
