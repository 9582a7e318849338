#include <faiss_flashgmm/gpu/kernels/EmitPairs.cuh>

#include <algorithm>

#include <faiss_flashgmm/gpu/kernels/Reduce.cuh>
#include <faiss_flashgmm/gpu/ptx/Sm80.cuh>
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
    static constexpr int kLists = 4 * PassShape::kMostParts;

    /// @param groups   region of the row's block
    /// @param own      the lists t and 4 + t of thread t
    __device__ GroupsOfRow(
            const LogitGroup* groups,
            const uint32_t (&own)[PassShape::kMostParts])
            : groups_(groups) {
#pragma unroll
        for (int t = 0; t < kLists; ++t) {
            const uint32_t list = __shfl_sync(0xFFFFFFFF, own[t / 4], t % 4, 4);
            const uint32_t length = list & KeptLogits::kOverflow;
            // Less than where the list starts, so that an index is a sum.
            start_[t] = (list >> KeptLogits::kLengthBits) - total_;
            before_[t] = total_;
            total_ += length;
        }
    }

    /// More than a row may have if a thread had no room.
    __device__ uint32_t total() const {
        return total_;
    }
    __device__ void clear() {
        total_ = 0;
    }

    /// Calls visit(group, its logits, its first component) for this thread's
    /// groups, the next of which is on its way meanwhile.
    template <class Visit>
    __device__ void for_own(Visit&& visit) const {
        uint32_t e = threadIdx.x % 4;
        const LogitGroup* group = nullptr;
        float4 a = {};
        float4 b = {};
        uint32_t first = 0;
        const auto fetch = [&] {
            if (e < total_) {
                group = groups_ + find(e);
                a = group->logits[0];
                b = group->logits[1];
                first = group->first;
            }
        };
        fetch();
#pragma unroll 1
        while (e < total_) {
            const float logits[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            const LogitGroup* here = group;
            const uint32_t first_here = first;
            e += 4;
            fetch();
            visit(*here, logits, first_here);
        }
    }

    /// Calls visit(logit, component) for all of this thread's logits above a
    /// bar; few rows need it.
    template <class Visit>
    __device__ void for_own_above(float bar, Visit&& visit) const {
#pragma unroll 1
        for (uint32_t e = threadIdx.x % 4; e < total_; e += 4) {
            const LogitGroup& group = groups_[find(e)];
#pragma unroll 1
            for (int i = 0; i < 8; ++i) {
                if (group.logit(i) > bar) {
                    visit(group.logit(i),
                          LogitGroup::component(group.first, i));
                }
            }
        }
    }

   private:
    __device__ uint32_t find(uint32_t e) const {
        uint32_t start = start_[0];
#pragma unroll
        for (int t = 1; t < kLists; ++t) {
            start = e >= before_[t] ? start_[t] : start;
        }
        return start + e;
    }

    const LogitGroup* groups_;
    uint32_t start_[kLists];
    uint32_t before_[kLists];
    uint32_t total_ = 0;
};

struct Shared {
    /// What a thread remembers of its pairs, so that it need not read all
    /// logits again.
    static constexpr uint32_t kPairs = 8;
    uint32_t component[kPairs][kThreads];
    float logit[kPairs][kThreads];

    uint32_t warps[kWarps];     ///< pairs of each warp
    uint32_t begin;             ///< where the block's pairs go
    RowSums sums[kThreads / 4]; ///< of the rows of four threads
    uint32_t counts[2][kWarps]; ///< pairs and groups of a warp
};

/// The number of rank m, from 1, among the logits of a row.
__device__ float logit_of_rank(const GroupsOfRow& groups, int m) {
    uint64_t bound = ~uint64_t(0);
    for (int e = 0; e < m; ++e) {
        uint64_t largest = 0;
        groups.for_own_above(-INFINITY, [&](float logit, uint32_t component) {
            const uint64_t rank = rank_logit(logit, component);
            largest = rank < bound ? max(largest, rank) : largest;
        });
        largest = max(largest, __shfl_xor_sync(0xFFFFFFFF, largest, 1));
        bound = max(largest, __shfl_xor_sync(0xFFFFFFFF, largest, 2));
    }
    return bound == 0 ? -INFINITY : ranked_logit(bound);
}

/// Where the first of this thread's pairs goes on the list. The block is
/// together, and takes one step of the counter that all blocks share.
__device__ uint32_t
take_list(const EmitPairs& p, uint32_t pairs, Shared& shared, bool& fits) {
    uint32_t total = 0;
    uint32_t before = exclusive_sum(pairs, total);
    if (threadIdx.x % 32 == 31) {
        shared.warps[threadIdx.x / 32] = total;
    }
    __syncthreads();
    total = 0;
    for (int w = 0; w < kWarps; ++w) {
        before += w < threadIdx.x / 32 ? shared.warps[w] : 0;
        total += shared.warps[w];
    }
    if (threadIdx.x == 0) {
        shared.begin = atomicAdd(&p.out.state->listed, total);
    }
    __syncthreads();
    fits = uint64_t(shared.begin) + total <= p.out.pairs.capacity;
    return shared.begin + before;
}

/// Puts up to kCount pairs, and no more than count, where they belong: each at
/// its rank in the bucket.
template <int kCount, class PairOf>
__device__ __forceinline__ void place_pairs(
        const ChunkOutput& out,
        uint32_t row,
        uint32_t count,
        PairOf&& pair_of) {
    uint32_t bucket[kCount];
    uint32_t begin[kCount];
    uint32_t room[kCount];
    uint32_t rank[kCount];
    float value[kCount];
    // All at once: each takes the memory's time to come back.
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
        if (e < count) {
            uint32_t component;
            pair_of(e, component, value[e]);
            bucket[e] = out.buckets.bucket(row, component);
            rank[e] = out.take_rank(bucket[e]);
            begin[e] = out.room[bucket[e]];
            room[e] = out.room[bucket[e] + 1] - begin[e];
        }
    }
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
        if (e < count) {
            if (rank[e] < room[e]) {
                out.sorted[begin[e] + rank[e]] = {row, value[e]};
            } else {
                const uint32_t to = atomicAdd(&out.state->listed, 1u);
                if (to < out.pairs.capacity) {
                    out.pairs.data[to] = {
                            bucket[e], row, rank[e] - room[e], value[e]};
                }
            }
        }
    }
}

/// What a thread counts.
struct Totals {
    uint32_t pairs = 0;
    uint32_t groups = 0;
};

/// Handles 8 rows a warp; if pairs are listed, the block is together.
template <bool kListed>
__device__ void emit_rows(
        const EmitPairs& p,
        int64_t first,
        Shared& shared,
        Totals& totals) {
    const int lane = threadIdx.x % 32;
    const int64_t i = first + lane / 4;
    const bool exists = i < p.n;
    const int parts = int(p.kept.shape.parts);
    constexpr int kMostParts = PassShape::kMostParts;
    uint32_t lists[kMostParts];
    float part_largest[kMostParts];
    float largest = -INFINITY;
#pragma unroll
    for (int part = 0; part < kMostParts; ++part) {
        const int64_t at = i * parts + part;
        const bool used = exists && part < parts;
        lists[part] = used ? p.kept.lists[at * 4 + lane % 4] : 0;
        part_largest[part] = used ? p.kept.largest[at] : -INFINITY;
        largest = fmaxf(largest, part_largest[part]);
    }
    const float weight = exists && p.weights != nullptr ? p.weights[i] : 1.0f;
    // A row that does not fit fp16 has only infinite logits.
    GroupsOfRow groups(p.kept.region_of_row(uint32_t(i)), lists);
    bool sparse = exists && largest > -INFINITY &&
            groups.total() <= EmitPairs::kMostGroups;
    totals.groups += lane % 4 == 0 ? min(groups.total(), 1024u) : 0;
    if (!sparse) {
        groups.clear();
    }

    float bar = largest + log2f(p.min_responsibility);
    if (kListed && p.m > 1) {
        bar = fminf(bar, logit_of_rank(groups, p.m) - p.slack);
    }
    float z = 0;
    float mass = 0; // the part of z that is kept
    uint32_t pairs = 0;
    uint32_t best = 0xFFFFFFFF;
    const auto take = [&](const LogitGroup& group,
                          const float(&logits)[8],
                          uint32_t first_component) {
        uint32_t above = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            z += ptx::exp2_fast(logits[i] - largest);
            above |= logits[i] > bar ? 1u << i : 0;
        }
        while (above != 0) { // one or two
            const int j = __ffs(int(above)) - 1;
            above &= above - 1;
            const float logit = group.logit(j);
            const uint32_t component =
                    LogitGroup::component(first_component, j);
            mass += ptx::exp2_fast(logit - largest);
            if (pairs < Shared::kPairs) {
                shared.component[pairs][threadIdx.x] = component;
                shared.logit[pairs][threadIdx.x] = logit;
            }
            ++pairs;
            best = logit == largest ? min(best, component) : best;
        }
    };
    groups.for_own(take);
    best = min(best, __shfl_xor_sync(0xFFFFFFFF, best, 1));
    best = min(best, __shfl_xor_sync(0xFFFFFFFF, best, 2));
    if (best == 0xFFFFFFFF) { // nothing reached the seed: it was no bound
        sparse = false;
        pairs = 0;
    }
    if (p.kept.tail != nullptr && sparse && lane % 4 < parts) {
        const float tail = p.kept.tail[i * parts + lane % 4];
        z += tail *
                exp2f((lane % 2 ? part_largest[1] : part_largest[0]) - largest);
    }
    z = quad_sum(z);
    mass = quad_sum(mass);
    totals.pairs += pairs;
    const float precision = sparse ? p.components.precision[best] : 1.0f;
    const float offset = sparse ? p.components.offset[best] : 0.0f;

    const float scale = weight / mass;
    const auto value_of = [&](float logit) {
        return scale * ptx::exp2_fast(logit - largest);
    };
    uint32_t begin = 0;
    if constexpr (kListed) {
        // The host starts over with fewer rows if the pairs do not fit.
        bool fits;
        begin = take_list(p, pairs, shared, fits);
        uint32_t to = begin;
        if (!fits) {
            // Nothing: the chunk does not count.
        } else if (pairs <= Shared::kPairs) {
            for (uint32_t e = 0; e < pairs; ++e) {
                p.out.list_pair(
                        to + e,
                        shared.component[e][threadIdx.x],
                        uint32_t(i),
                        value_of(shared.logit[e][threadIdx.x]));
            }
        } else {
            groups.for_own_above(bar, [&](float logit, uint32_t component) {
                p.out.list_pair(to++, component, uint32_t(i), value_of(logit));
            });
        }
    } else {
        constexpr uint32_t kAtOnce = 4;
        const auto place_remembered = [&](uint32_t count) {
            for (uint32_t e = 0; e < count; e += kAtOnce) {
                const auto pair_of =
                        [&](int t, uint32_t& component, float& value) {
                            component = shared.component[e + t][threadIdx.x];
                            value = value_of(shared.logit[e + t][threadIdx.x]);
                        };
                place_pairs<kAtOnce>(p.out, uint32_t(i), count - e, pair_of);
            }
        };
        if (pairs <= Shared::kPairs) {
            place_remembered(pairs);
        } else { // again, as many at a time as can be remembered
            uint32_t count = 0;
            groups.for_own_above(bar, [&](float logit, uint32_t component) {
                shared.component[count][threadIdx.x] = component;
                shared.logit[count][threadIdx.x] = logit;
                if (++count == Shared::kPairs) {
                    place_remembered(count);
                    count = 0;
                }
            });
            place_remembered(count);
        }
    }

    pairs += __shfl_xor_sync(0xFFFFFFFF, pairs, 1);
    pairs += __shfl_xor_sync(0xFFFFFFFF, pairs, 2);
    if (lane % 4 == 0 && exists) {
        if (p.ranges.begin != nullptr) {
            p.ranges.begin[i] = begin;
            p.ranges.count[i] = sparse ? pairs : 0;
            p.ranges.tail[i] = largest + log2f(fmaxf(z - mass, 0.0f));
        }
        const float distance = fmaxf((offset - largest) / precision, 0.0f);
        if (p.distances != nullptr) {
            p.distances[i] = sparse ? distance : INFINITY;
        }
        if (sparse) {
            if (p.best != nullptr) {
                p.best[i] = best;
            }
            RowSums& sums = shared.sums[threadIdx.x / 4];
            sums.weight += weight;
            sums.log2_z += double(weight) * (largest + log2f(z));
            sums.objective += double(weight) * distance;
            sums.dropped += double(weight) * fmaxf(1.0f - mass / z, 0.0f);
        } else {
            p.out.dense_rows[atomicAdd(&p.out.state->dense_rows, 1u)] =
                    uint32_t(i);
        }
    }
}

template <bool kListed>
__global__ void __launch_bounds__(kThreads, 7) emit_kernel(EmitPairs p) {
    __shared__ Shared shared;
    if (threadIdx.x % 4 == 0) {
        shared.sums[threadIdx.x / 4] = {};
    }
    Totals totals;
    constexpr int kRowsOfBlock = kWarps * kRowsOfWarp;
    for (int64_t first = int64_t(blockIdx.x) * kRowsOfBlock; first < p.n;
         first += int64_t(gridDim.x) * kRowsOfBlock) {
        emit_rows<kListed>(
                p, first + threadIdx.x / 32 * kRowsOfWarp, shared, totals);
    }
    const uint32_t pairs = __reduce_add_sync(0xFFFFFFFF, totals.pairs);
    const uint32_t groups = __reduce_add_sync(0xFFFFFFFF, totals.groups);
    if (threadIdx.x % 32 == 0) {
        shared.counts[0][threadIdx.x / 32] = pairs;
        shared.counts[1][threadIdx.x / 32] = groups;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        RowSums sums = shared.sums[threadIdx.x];
        sums.weight = warp_sum(sums.weight);
        sums.log2_z = warp_sum(sums.log2_z);
        sums.objective = warp_sum(sums.objective);
        sums.dropped = warp_sum(sums.dropped);
        if (threadIdx.x == 0) {
            p.out.row_sums[blockIdx.x] = sums;
        }
        if (threadIdx.x < kWarps) {
            atomicAdd(&p.out.state->pairs, shared.counts[0][threadIdx.x]);
            atomicAdd(&p.out.state->groups, shared.counts[1][threadIdx.x]);
        }
    }
}

static_assert(kThreads / 4 == 32); // a warp adds the sums

} // namespace

int EmitPairs::blocks() const {
    constexpr int64_t kRowsOfBlock = kWarps * kRowsOfWarp;
    return int(std::min<int64_t>(
            (n + kRowsOfBlock - 1) / kRowsOfBlock, ChunkOutput::kMaxBlocks));
}

void EmitPairs::launch(cudaStream_t stream) const {
    const auto kernel =
            out.room != nullptr ? emit_kernel<false> : emit_kernel<true>;
    kernel<<<blocks(), kThreads, 0, stream>>>(*this);
    FLASHGMM_CUDA_LAUNCHED("emit_pairs");
}

} // namespace faiss_flashgmm::gpu
