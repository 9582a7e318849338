#include <faiss_flashgmm/gpu/kernels/EmitPairs.cuh>

#include <algorithm>

#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kRowsOfWarp = 8; // four threads a row

__device__ float quad_sum(float v) {
    v += __shfl_xor_sync(0xFFFFFFFF, v, 1);
    return v + __shfl_xor_sync(0xFFFFFFFF, v, 2);
}

__device__ double warp_sum(double v) {
    for (int offset = 16; offset > 0; offset /= 2) {
        v += __shfl_xor_sync(0xFFFFFFFF, v, offset);
    }
    return v;
}

/// Sum over the lanes before this one, and over all.
__device__ uint32_t exclusive_sum(uint32_t v, uint32_t& total) {
    const int lane = threadIdx.x % 32;
    uint32_t sum = v;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const uint32_t other = __shfl_up_sync(0xFFFFFFFF, sum, offset);
        sum += lane >= offset ? other : 0;
    }
    total = __shfl_sync(0xFFFFFFFF, sum, 31);
    return sum - v;
}

/// The groups that the threads of a row kept, dealt out evenly to the four
/// threads that work on it here.
class GroupsOfRow {
   public:
    static constexpr int kLists = 4 * KeptLogits::kParts;

    /// @param own      the lists t and 4 + t of thread t
    __device__ GroupsOfRow(
            const LogitGroup* groups,
            const uint2 (&own)[KeptLogits::kParts])
            : groups_(groups) {
#pragma unroll
        for (int t = 0; t < kLists; ++t) {
            begin_[t] = __shfl_sync(0xFFFFFFFF, own[t / 4].x, t % 4, 4);
            count_[t] = __shfl_sync(0xFFFFFFFF, own[t / 4].y, t % 4, 4);
        }
    }

    /// More than can be if a thread had no room.
    __device__ uint64_t total() const {
        uint64_t sum = 0;
#pragma unroll
        for (int t = 0; t < kLists; ++t) {
            sum += count_[t];
        }
        return sum;
    }
    __device__ void clear() {
#pragma unroll
        for (int t = 0; t < kLists; ++t) {
            count_[t] = 0;
        }
    }

    /// Calls visit(logit, component) for all logits of this thread's groups.
    template <class Visit>
    __device__ void for_own(Visit&& visit) const {
        const uint32_t total_here = uint32_t(total());
#pragma unroll 1
        for (uint32_t e = threadIdx.x % 4; e < total_here; e += 4) {
            const LogitGroup& group = groups_[find(e)];
            const float4 a = group.logits[0];
            const float4 b = group.logits[1];
            const uint32_t first = group.first;
            const float logits[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                visit(logits[i], LogitGroup::component(first, i));
            }
        }
    }

   private:
    __device__ uint32_t find(uint32_t e) const {
        uint32_t at = begin_[0] + e;
        uint32_t before = 0;
#pragma unroll
        for (int t = 1; t < kLists; ++t) {
            before += count_[t - 1];
            at = e >= before ? begin_[t] + e - before : at;
        }
        return at;
    }

    const LogitGroup* groups_;
    uint32_t begin_[kLists];
    uint32_t count_[kLists];
};

struct Shared {
    /// What a thread remembers of its pairs, so that it need not read the
    /// logits again.
    static constexpr uint32_t kPairs = 4;
    uint32_t component[kPairs][kThreads];
    float term[kPairs][kThreads];

    uint32_t warps[kWarps]; ///< pairs of each warp
    uint32_t begin;         ///< where the block's pairs go
    RowSums sums[kWarps];
};

/// Handles 8 rows a warp; the block is together.
__device__ void emit_rows(
        const EmitPairs& p,
        int64_t first,
        Shared& shared,
        RowSums& sums) {
    const int lane = threadIdx.x % 32;
    const int64_t i = first + lane / 4;
    const bool exists = i < p.n;
    constexpr int kParts = KeptLogits::kParts;
    uint2 lists[kParts] = {};
    float largest = -INFINITY;
    float second = -INFINITY;
    for (int part = 0; exists && part < kParts; ++part) {
        lists[part] = p.kept.ranges[(i * kParts + part) * 4 + lane % 4];
        const float l = p.kept.largest[i * kParts + part];
        if (p.second_slack >= 0) {
            second =
                    fmaxf(fmaxf(second, p.kept.second[i * kParts + part]),
                          fminf(largest, l));
        }
        largest = fmaxf(largest, l);
    }
    const float weight = exists && p.weights != nullptr ? p.weights[i] : 1.0f;
    // A row that does not fit fp16 has only infinite logits.
    GroupsOfRow groups(p.kept.groups, lists);
    bool sparse = exists && largest > -INFINITY &&
            groups.total() <= EmitPairs::kMostGroups;
    if (!sparse) {
        groups.clear();
    }

    float bar = largest + log2f(p.min_responsibility);
    if (p.second_slack >= 0) {
        bar = fminf(bar, second - p.second_slack);
    }
    float z = 0;
    float mass = 0; // the part of z that is kept
    uint32_t pairs = 0;
    uint32_t best = 0xFFFFFFFF;
    groups.for_own([&](float logit, uint32_t component) {
        const float term = exp2f(logit - largest);
        z += term;
        if (logit > bar) {
            mass += term;
            if (pairs < Shared::kPairs) {
                shared.component[pairs][threadIdx.x] = component;
                shared.term[pairs][threadIdx.x] = term;
            }
            ++pairs;
        }
        best = logit == largest ? min(best, component) : best;
    });
    z = quad_sum(z);
    mass = quad_sum(mass);
    best = min(best, __shfl_xor_sync(0xFFFFFFFF, best, 1));
    best = min(best, __shfl_xor_sync(0xFFFFFFFF, best, 2));
    if (best == 0xFFFFFFFF) { // nothing reached the seed: it was no bound
        sparse = false;
        pairs = 0;
    }

    // One block-wide step of the counter that all blocks share.
    uint32_t total = 0;
    uint32_t before = exclusive_sum(pairs, total);
    if (lane == 31) {
        shared.warps[threadIdx.x / 32] = total;
    }
    __syncthreads();
    total = 0;
    for (int w = 0; w < kWarps; ++w) {
        before += w < threadIdx.x / 32 ? shared.warps[w] : 0;
        total += shared.warps[w];
    }
    if (threadIdx.x == 0) {
        shared.begin = atomicAdd(&p.out.state->pairs, total);
    }
    __syncthreads();
    const uint32_t begin = shared.begin;
    // The host starts over with fewer rows if the pairs do not fit.
    const bool fits = uint64_t(begin) + total <= p.out.pairs.capacity;
    const float scale = weight / mass;
    uint32_t to = begin + before;
    if (!fits) {
        // Nothing: the chunk does not count.
    } else if (pairs <= Shared::kPairs) {
        for (uint32_t e = 0; e < pairs; ++e) {
            p.out.add_pair(
                    to + e,
                    shared.component[e][threadIdx.x],
                    uint32_t(i),
                    scale * shared.term[e][threadIdx.x]);
        }
    } else {
        groups.for_own([&](float logit, uint32_t component) {
            if (logit > bar) {
                p.out.add_pair(
                        to++,
                        component,
                        uint32_t(i),
                        scale * exp2f(logit - largest));
            }
        });
    }

    pairs += __shfl_xor_sync(0xFFFFFFFF, pairs, 1);
    pairs += __shfl_xor_sync(0xFFFFFFFF, pairs, 2);
    if (lane % 4 == 0 && exists) {
        if (p.ranges.begin != nullptr) {
            p.ranges.begin[i] = begin + before;
            p.ranges.count[i] = sparse ? pairs : 0;
            p.ranges.tail[i] = largest + log2f(fmaxf(z - mass, 0.0f));
        }
        if (sparse) {
            if (p.best != nullptr) {
                p.best[i] = best;
            }
            const float distance = (p.components.offset[best] - largest) /
                    p.components.precision[best];
            sums.weight += weight;
            sums.log2_z += double(weight) * (largest + log2f(z));
            sums.objective += double(weight) * fmaxf(distance, 0.0f);
            sums.dropped += double(weight) * fmaxf(1.0f - mass / z, 0.0f);
        } else {
            p.out.dense_rows[atomicAdd(&p.out.state->dense_rows, 1u)] =
                    uint32_t(i);
        }
    }
}

__global__ void __launch_bounds__(kThreads, 9) emit_kernel(EmitPairs p) {
    __shared__ Shared shared;
    RowSums sums;
    constexpr int kRowsOfBlock = kWarps * kRowsOfWarp;
    for (int64_t first = int64_t(blockIdx.x) * kRowsOfBlock; first < p.n;
         first += int64_t(gridDim.x) * kRowsOfBlock) {
        emit_rows(p, first + threadIdx.x / 32 * kRowsOfWarp, shared, sums);
    }
    sums.weight = warp_sum(sums.weight);
    sums.log2_z = warp_sum(sums.log2_z);
    sums.objective = warp_sum(sums.objective);
    sums.dropped = warp_sum(sums.dropped);
    if (threadIdx.x % 32 == 0) {
        shared.sums[threadIdx.x / 32] = sums;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int t = 1; t < kWarps; ++t) {
            sums.weight += shared.sums[t].weight;
            sums.log2_z += shared.sums[t].log2_z;
            sums.objective += shared.sums[t].objective;
            sums.dropped += shared.sums[t].dropped;
        }
        p.out.row_sums[blockIdx.x] = sums;
    }
}

constexpr int kLanes = 8; // of a row that is seeded

__global__ void __launch_bounds__(kThreads)
        seed_kernel(SeedRows p, int64_t n_padded) {
    const int lane = threadIdx.x % kLanes;
    const int64_t chunks = p.rows.d_padded / HalfLayout::kChunk;
    const int64_t row = (blockIdx.x * int64_t(kThreads) + threadIdx.x) / kLanes;
    if (row >= n_padded) { // whole warps: n_padded is a multiple of 4
        return;
    }
    const uint32_t best = row < p.rows.n ? p.best[row] : 0xFFFFFFFF;
    const bool known = best < p.k;
    float product = 0;
    for (int64_t c = lane; known && c < chunks; c += kLanes) {
        const uint4 x = *reinterpret_cast<const uint4*>(p.rows.chunk(row, c));
        const uint4 m =
                *reinterpret_cast<const uint4*>(p.components.chunk(best, c));
        const __half2* xh = reinterpret_cast<const __half2*>(&x);
        const __half2* mh = reinterpret_cast<const __half2*>(&m);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 a = __half22float2(xh[i]);
            const float2 b = __half22float2(mh[i]);
            product = fmaf(a.x, b.x, fmaf(a.y, b.y, product));
        }
    }
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
        product += __shfl_xor_sync(0xFFFFFFFF, product, offset);
    }
    if (lane == 0) {
        float seed = -INFINITY;
        if (known) {
            const float2 c = p.components.constants[best];
            const float squared = p.rows.squared[row];
            // The tensor cores truncate after every 16 columns.
            const float rounding = (p.rows.d_padded / 16 + 8) * 0x1p-22f;
            const float margin =
                    0.125f + rounding * (fabsf(c.y) + c.x * squared);
            seed = fmaf(c.x, fmaf(2.0f, product, -squared), c.y) - margin;
        }
        p.seeds[row] = seed;
    }
}

} // namespace

int EmitPairs::blocks() const {
    constexpr int64_t kRowsOfBlock = kWarps * kRowsOfWarp;
    return int(std::min<int64_t>(
            (n + kRowsOfBlock - 1) / kRowsOfBlock, ChunkOutput::kMaxBlocks));
}

void EmitPairs::launch(cudaStream_t stream) const {
    emit_kernel<<<blocks(), kThreads, 0, stream>>>(*this);
    FLASHGMM_CUDA_LAUNCHED("emit_pairs");
}

void SeedRows::launch(cudaStream_t stream) const {
    const int64_t n_padded = HalfRows::padded_rows(rows.n);
    constexpr int64_t kRowsOfBlock = kThreads / kLanes;
    seed_kernel<<<unsigned(n_padded / kRowsOfBlock), kThreads, 0, stream>>>(
            *this, n_padded);
    FLASHGMM_CUDA_LAUNCHED("seed_rows");
}

} // namespace faiss_flashgmm::gpu
