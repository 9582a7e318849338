#include <faiss_flashgmm/gpu/kernels/MaximizeMixture.cuh>

#include <cfloat>

#include <faiss_flashgmm/gpu/kernels/Reduce.cuh>
#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace {

constexpr int kMeanThreads = 128;
constexpr int kThreads = 1024; // of the one block that sees all components

__device__ void raise_largest_mean(MixtureFacts* facts, float magnitude) {
    // Of numbers >= 0 the bits are in the same order.
    atomicMax(
            reinterpret_cast<unsigned*>(&facts->largest_mean),
            __float_as_uint(magnitude));
}

__device__ float largest_of_block(float v) {
    return block_reduce<kMeanThreads>(
            v, [](float a, float b) { return fmaxf(a, b); });
}

__global__ void __launch_bounds__(kThreads) totals_kernel(MaximizeMixture p) {
    double total = 0;
    double squares = 0;
    for (int64_t c = threadIdx.x; c < p.k; c += kThreads) {
        total += p.stats[c];
        squares += p.stats[c] * p.stats[c];
    }
    total = block_sum<kThreads>(total);
    squares = block_sum<kThreads>(squares);
    if (threadIdx.x == 0) {
        p.facts->total = total;
        p.facts->imbalance = double(p.k) * squares / (total * total);
        p.facts->largest_mean = 0;
    }
}

__device__ double threshold(const MaximizeMixture& p) {
    return p.empty_threshold * p.facts->total / double(p.k);
}

/// A block finds a component's mean, and the squared distance about it.
__global__ void __launch_bounds__(kMeanThreads)
        means_kernel(MaximizeMixture p) {
    const int64_t c = blockIdx.x;
    const double count = p.stats[c];
    const double squared = p.stats[p.k + c];
    const double* sums = p.stats + 2 * p.k + c * p.d;
    const float* former = p.former.means + c * p.d;
    float* updated = p.updated.means + c * p.d;
    const bool empty = count <= threshold(p);
    const bool stays = empty || c < p.frozen;
    double factor = 1; // to norm 1
    if (!stays && p.constraint == MeanConstraint::unit) {
        double norm = 0;
        for (int64_t j = threadIdx.x; j < p.d; j += kMeanThreads) {
            const double v = float(sums[j] / count);
            norm += v * v;
        }
        norm = block_sum<kMeanThreads>(norm);
        factor = norm > 0 ? 1 / (p.scale * sqrt(norm)) : 1;
    }
    double moved = 0; // from the old mean to the mean of the rows
    double off = 0;   // from the mean of the rows to the mean that is kept
    float largest = 0;
    for (int64_t j = threadIdx.x; j < p.d; j += kMeanThreads) {
        float mean = former[j];
        if (!stays) {
            const double exact = sums[j] / count;
            moved += (exact - mean) * (exact - mean);
            mean = float(exact);
            if (p.constraint == MeanConstraint::unit) {
                mean = float(mean * factor);
            } else if (p.constraint == MeanConstraint::integer) {
                const double shift = p.shift[j];
                mean = float((round(mean * p.scale + shift) - shift) / p.scale);
            }
            off += (exact - mean) * (exact - mean);
        }
        updated[j] = mean;
        largest = fmaxf(largest, fabsf(mean));
    }
    moved = block_sum<kMeanThreads>(moved);
    off = block_sum<kMeanThreads>(off);
    largest = largest_of_block(largest);
    if (threadIdx.x == 0) {
        p.residual[c] = empty ? 0 : squared + count * (off - moved);
        raise_largest_mean(p.facts, largest);
    }
}

/// By the one block.
__device__ void fold_constants(
        int64_t k,
        int64_t d,
        const MixtureArrays& mixture,
        MixtureFacts* facts) {
    constexpr double kTwoPi = 6.283185307179586476925;
    constexpr double kLog2E = 1.442695040888963407360;
    const auto log2_norm = [&](int64_t c) {
        return log2(mixture.weights[c]) -
                0.5 * double(d) * log2(kTwoPi * mixture.variances[c]);
    };
    double base = -INFINITY;
    double least = INFINITY;
    for (int64_t c = threadIdx.x; c < k; c += kThreads) {
        base = fmax(base, log2_norm(c));
        least = fmin(least, mixture.variances[c]);
    }
    base = block_reduce<kThreads>(
            base, [](double a, double b) { return fmax(a, b); });
    least = block_reduce<kThreads>(
            least, [](double a, double b) { return fmin(a, b); });
    for (int64_t c = threadIdx.x; c < k; c += kThreads) {
        mixture.precision[c] = float(kLog2E / (2 * mixture.variances[c]));
        mixture.offset[c] = float(log2_norm(c) - base);
    }
    if (threadIdx.x == 0) {
        facts->log2_base = base;
        facts->least_variance = least;
    }
}

/// Variances and weights.
__global__ void __launch_bounds__(kThreads) spread_kernel(MaximizeMixture p) {
    const double total = p.facts->total;
    const double least_count = threshold(p);
    double tied = 0;
    double occupied = 0;
    double empty = 0;
    for (int64_t c = threadIdx.x; c < p.k; c += kThreads) {
        if (p.stats[c] <= least_count) {
            empty += 1;
        } else {
            tied += p.residual[c];
            occupied += p.stats[c];
        }
    }
    tied = block_sum<kThreads>(tied);
    occupied = block_sum<kThreads>(occupied);
    empty = block_sum<kThreads>(empty);
    tied = fmax(p.floor, tied / (double(p.d) * occupied));
    double at_floor = 0;
    double moved = 0;
    for (int64_t c = threadIdx.x; c < p.k; c += kThreads) {
        const double count = p.stats[c];
        double variance = p.former.variances[c];
        if (p.tied) {
            variance = tied;
        } else if (count > least_count) {
            variance = fmax(p.floor, p.residual[c] / (double(p.d) * count));
        }
        const double weight = p.uniform ? 1 / double(p.k) : count / total;
        p.updated.variances[c] = variance;
        p.updated.weights[c] = weight;
        at_floor += variance <= p.floor;
        moved += 0.5 * fabs(weight - p.former.weights[c]);
    }
    at_floor = block_sum<kThreads>(at_floor);
    moved = block_sum<kThreads>(moved);
    if (threadIdx.x == 0) {
        p.facts->moved_mass = moved;
        p.facts->empty = int64_t(empty);
        p.facts->at_floor = int64_t(at_floor);
        const double* sums = p.stats + p.k * (p.d + 2);
        for (size_t i = 0; i < sizeof(p.facts->sums) / sizeof(double); ++i) {
            p.facts->sums[i] = sums[i];
        }
    }
    __syncthreads();
    fold_constants(p.k, p.d, p.updated, p.facts);
}

__global__ void __launch_bounds__(kThreads) fold_kernel(FoldConstants p) {
    fold_constants(p.k, p.d, p.mixture, p.facts);
}

__global__ void __launch_bounds__(kMeanThreads)
        largest_kernel(FoldConstants p) {
    const float* mean = p.mixture.means + blockIdx.x * p.d;
    float largest = 0;
    for (int64_t j = threadIdx.x; j < p.d; j += kMeanThreads) {
        largest = fmaxf(largest, fabsf(mean[j]));
    }
    largest = largest_of_block(largest);
    if (threadIdx.x == 0) {
        raise_largest_mean(p.facts, largest);
    }
}

__global__ void add_statistics_kernel(
        int64_t size,
        const double* values,
        double* sums) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < size) {
        sums[i] += values[i];
    }
}

} // namespace

void FoldConstants::launch(cudaStream_t stream) const {
    FLASHGMM_CUDA(cudaMemsetAsync(facts, 0, sizeof(*facts), stream));
    largest_kernel<<<unsigned(k), kMeanThreads, 0, stream>>>(*this);
    FLASHGMM_CUDA_LAUNCHED("largest_mean");
    fold_kernel<<<1, kThreads, 0, stream>>>(*this);
    FLASHGMM_CUDA_LAUNCHED("fold_constants");
}

void MaximizeMixture::launch(cudaStream_t stream) const {
    totals_kernel<<<1, kThreads, 0, stream>>>(*this);
    FLASHGMM_CUDA_LAUNCHED("totals");
    means_kernel<<<unsigned(k), kMeanThreads, 0, stream>>>(*this);
    FLASHGMM_CUDA_LAUNCHED("means");
    spread_kernel<<<1, kThreads, 0, stream>>>(*this);
    FLASHGMM_CUDA_LAUNCHED("spread");
}

void add_statistics(
        int64_t size,
        const double* values,
        double* sums,
        cudaStream_t stream) {
    constexpr int64_t kBlock = 256;
    add_statistics_kernel<<<
            unsigned((size + kBlock - 1) / kBlock),
            kBlock,
            0,
            stream>>>(size, values, sums);
    FLASHGMM_CUDA_LAUNCHED("add_statistics");
}

} // namespace faiss_flashgmm::gpu
