#include <faiss_flashgmm/gpu/kernels/SeedRows.cuh>

#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace {

constexpr int kThreads = 128;
constexpr int kSeedLanes = 8; // that share a row
/// What conversions and the like may cost.
constexpr float kSeedMargin = 0.125f;

/// How wrong the tensor cores' products may be, as a share of the largest
/// terms: they truncate after every 16 columns.
__device__ float product_error(const SeedRows& p) {
    return (p.rows.d_padded / 16 + 8) * 0x1p-22f;
}

/// From the distance that the row had and how far the mean has moved; if that
/// loses more than p.most_loss bits, NaN.
__device__ float seed_by_distance(
        const SeedRows& p,
        int64_t row,
        uint32_t best,
        float squared) {
    const float2 c = p.components.constants[best]; // precision, y
    const float2 move = p.moves[best];
    const float distance = p.distances[row];
    const float largest =
            squared + (sqrtf(move.y) + move.x) * (sqrtf(move.y) + move.x);
    const float error = product_error(p) * largest;
    const float farthest = sqrtf(distance + error) + move.x;
    // The offset, which is not at hand, less precision times the distance.
    const float seed = fmaf(c.x, move.y - farthest * farthest - error, c.y) -
            product_error(p) * fabsf(c.y) - kSeedMargin;
    const float loss = c.x * (farthest * farthest - distance);
    return loss < p.most_loss ? seed : NAN;
}

/// From the row itself, which kSeedLanes lanes share.
__device__ float seed_by_row(const SeedRows& p, int64_t row, uint32_t best) {
    const int64_t chunks = p.rows.d_padded / HalfLayout::kChunk;
    float product = 0;
    for (int64_t c = threadIdx.x % kSeedLanes; best < p.k && c < chunks;
         c += kSeedLanes) {
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
    for (int offset = kSeedLanes / 2; offset > 0; offset /= 2) {
        product += __shfl_xor_sync(0xFFFFFFFF, product, offset);
    }
    if (best >= p.k) {
        return -INFINITY;
    }
    const float2 c = p.components.constants[best];
    const float squared = p.rows.squared[row];
    const float margin =
            kSeedMargin + product_error(p) * (fabsf(c.y) + c.x * squared);
    return fmaf(c.x, fmaf(2.0f, product, -squared), c.y) - margin;
}

/// A thread a row, until its warp turns to the rows that need to be read.
__global__ void __launch_bounds__(kThreads)
        seed_kernel(SeedRows p, int64_t n_padded) {
    const int lane = threadIdx.x % 32;
    const int64_t row = blockIdx.x * int64_t(kThreads) + threadIdx.x;
    const bool exists = row < p.rows.n;
    const uint32_t best = exists ? p.best[row] : 0xFFFFFFFF;
    float seed = NAN;
    if (best >= p.k) {
        seed = -INFINITY;
    } else if (p.distances != nullptr) {
        seed = seed_by_distance(p, row, best, p.rows.squared[row]);
    }
    uint32_t open = __ballot_sync(0xFFFFFFFF, !(seed == seed));
    while (open != 0) {
        // The four lowest open lanes, one for each group of lanes.
        int from = 32;
#pragma unroll
        for (int g = 0; g < 32 / kSeedLanes; ++g) {
            const int next = open != 0 ? __ffs(int(open)) - 1 : 32;
            from = lane / kSeedLanes == g ? next : from;
            open &= open - 1;
        }
        const uint32_t theirs = __shfl_sync(0xFFFFFFFF, best, from % 32);
        const float found = seed_by_row(
                p, row - lane + from, from < 32 ? theirs : 0xFFFFFFFF);
        // Each lane whose row was one of them takes its seed.
#pragma unroll
        for (int g = 0; g < 32 / kSeedLanes; ++g) {
            const int at = g * kSeedLanes;
            const int whose = __shfl_sync(0xFFFFFFFF, from, at);
            const float value = __shfl_sync(0xFFFFFFFF, found, at);
            seed = whose == lane ? value : seed;
        }
    }
    if (row < n_padded) {
        p.seeds[row] = seed;
    }
}

} // namespace

void SeedRows::launch(cudaStream_t stream) const {
    const int64_t n_padded = HalfRows::padded_rows(rows.n);
    const auto blocks = unsigned((n_padded + kThreads - 1) / kThreads);
    seed_kernel<<<blocks, kThreads, 0, stream>>>(*this, n_padded);
    FLASHGMM_CUDA_LAUNCHED("seed_rows");
}

} // namespace faiss_flashgmm::gpu
