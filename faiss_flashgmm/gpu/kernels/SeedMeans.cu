#include <faiss_flashgmm/gpu/kernels/SeedMeans.cuh>

#include <faiss_flashgmm/gpu/kernels/Reduce.cuh>
#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kDrawThreads = 1024;
static_assert(SeedMeans::kStretch == kThreads);

/// A block has a stretch of rows, a warp one row after the other.
__global__ void __launch_bounds__(kThreads) add_kernel(SeedMeans p, int64_t c) {
    __shared__ double distances[kThreads];
    const int64_t d = p.rows.d;
    const int64_t first = blockIdx.x * SeedMeans::kStretch;
    const int lane = threadIdx.x % 32;
    for (int i = threadIdx.x / 32; i < kThreads; i += kThreads / 32) {
        const int64_t row = first + i;
        double distance = 0;
        for (int64_t j = lane; c >= 0 && row < p.rows.n && j < d; j += 32) {
            const double difference =
                    double(p.rows.raw(row * d + j)) - p.means[c * d + j];
            distance += difference * difference;
        }
        for (int offset = 16; offset > 0; offset /= 2) {
            distance += __shfl_xor_sync(0xFFFFFFFF, distance, offset);
        }
        if (lane == 0) {
            distances[i] = distance;
        }
    }
    __syncthreads();
    const int64_t row = first + threadIdx.x;
    double nearest = 0;
    double weight = 0;
    if (row < p.rows.n) {
        weight = p.rows.weight(row);
        nearest =
                c < 0 ? INFINITY : fmin(p.nearest[row], distances[threadIdx.x]);
        p.nearest[row] = nearest;
    }
    // Of no use, and not a number, before there is a mean.
    const double mass = block_sum<kThreads>(c < 0 ? 0 : weight * nearest);
    weight = block_sum<kThreads>(weight);
    if (threadIdx.x == 0) {
        p.mass[blockIdx.x] = mass;
        p.weight[blockIdx.x] = weight;
    }
}

/// Inclusive sums over the block, and the total.
__device__ double inclusive_sum(double v, double& total) {
    __shared__ double warps[kDrawThreads / 32];
    const int lane = threadIdx.x % 32;
    for (int offset = 1; offset < 32; offset *= 2) {
        const double other = __shfl_up_sync(0xFFFFFFFF, v, offset);
        v += lane >= offset ? other : 0;
    }
    __syncthreads();
    if (lane == 31) {
        warps[threadIdx.x / 32] = v;
    }
    __syncthreads();
    total = 0;
    for (int w = 0; w < kDrawThreads / 32; ++w) {
        v += w < threadIdx.x / 32 ? warps[w] : 0;
        total += warps[w];
    }
    return v;
}

struct Drawn {
    int64_t index;
    double before; ///< mass of what comes earlier
};

/// The index at which the sums of mass pass the target; the last one with any
/// mass if rounding keeps them under it.
template <class Mass>
__device__ Drawn draw_by(int64_t size, double target, Mass&& mass) {
    __shared__ unsigned long long found;
    __shared__ unsigned long long last;
    __shared__ double before;
    if (threadIdx.x == 0) {
        found = ~0ull;
        last = 0;
        before = 0;
    }
    double carry = 0;
    for (int64_t begin = 0; begin < size; begin += kDrawThreads) {
        const int64_t i = begin + threadIdx.x;
        const double own = i < size ? mass(i) : 0;
        double total;
        const double sum = carry + inclusive_sum(own, total);
        __syncthreads();
        if (own > 0) {
            atomicMax(&last, (unsigned long long)(i));
            if (sum > target) {
                atomicMin(&found, (unsigned long long)(i));
            }
        }
        __syncthreads();
        if (found == (unsigned long long)(i)) {
            before = sum - own;
        }
        carry += total;
        if (found != ~0ull) { // the same for all
            break;
        }
        __syncthreads();
    }
    __syncthreads();
    const Drawn drawn = {int64_t(found != ~0ull ? found : last), before};
    __syncthreads();
    return drawn;
}

__global__ void __launch_bounds__(kDrawThreads)
        draw_kernel(SeedMeans p, int64_t c) {
    const int64_t stretches = p.stretches();
    const auto total_of = [&](const double* parts) {
        double own = 0;
        for (int64_t i = threadIdx.x; i < stretches; i += kDrawThreads) {
            own += parts[i];
        }
        return block_sum<kDrawThreads>(own);
    };
    // Without mass every row is a mean already: by weight alone.
    double total = c > 0 ? total_of(p.mass) : 0;
    const bool by_mass = total > 0;
    if (!by_mass) {
        total = total_of(p.weight);
    }
    const double* parts = by_mass ? p.mass : p.weight;
    const double target = p.uniform[c] * total;
    const Drawn stretch =
            draw_by(stretches, target, [&](int64_t i) { return parts[i]; });
    const int64_t first = stretch.index * SeedMeans::kStretch;
    const Drawn row =
            draw_by(min(SeedMeans::kStretch, p.rows.n - first),
                    target - stretch.before,
                    [&](int64_t i) {
                        const double w = p.rows.weight(first + i);
                        return by_mass ? w * p.nearest[first + i] : w;
                    });
    const int64_t d = p.rows.d;
    for (int64_t j = threadIdx.x; j < d; j += kDrawThreads) {
        p.means[c * d + j] = p.rows.raw((first + row.index) * d + j);
    }
}

} // namespace

void SeedMeans::add(int64_t c, cudaStream_t stream) const {
    add_kernel<<<unsigned(stretches()), kThreads, 0, stream>>>(*this, c);
    FLASHGMM_CUDA_LAUNCHED("seed_add");
}

void SeedMeans::draw(int64_t c, cudaStream_t stream) const {
    draw_kernel<<<1, kDrawThreads, 0, stream>>>(*this, c);
    FLASHGMM_CUDA_LAUNCHED("seed_draw");
}

} // namespace faiss_flashgmm::gpu
