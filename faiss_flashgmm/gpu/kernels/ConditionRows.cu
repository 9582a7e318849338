#include <faiss_flashgmm/gpu/kernels/ConditionRows.cuh>

#include <algorithm>

#include <cuda_fp16.h>

#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 16; // of a row
constexpr float kLargestHalf = 65504.0f;

__device__ float sum_over_lanes(float v) {
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
        v += __shfl_xor_sync(0xFFFFFFFF, v, offset, kLanes);
    }
    return v;
}

/// Rounds 8 values and returns the sum of their squares; infinity if one of
/// them does not fit, and then they are stored as zeros.
__device__ float round_chunk(const float (&v)[8], __half* out) {
    __align__(16) __half h[8];
    float squared = 0;
    bool fits = true;
    for (int i = 0; i < 8; ++i) {
        fits = fits && fabsf(v[i]) <= kLargestHalf;
    }
    for (int i = 0; i < 8; ++i) {
        h[i] = __float2half_rn(fits ? v[i] : 0.0f);
        const float rounded = __half2float(h[i]);
        squared += rounded * rounded;
    }
    *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(h);
    return fits ? squared : INFINITY;
}

template <RowType kType>
constexpr int64_t kBytesOf = size_of(kType);

/// Eight coordinates, 8 * size_of(type) bytes aligned to as much (float32: to
/// 16 bytes).
template <RowType kType>
__device__ void load_chunk(const void* x, int64_t first, float (&out)[8]) {
    if constexpr (kType == RowType::float32) {
        const float4* from = reinterpret_cast<const float4*>(
                static_cast<const float*>(x) + first);
        const float4 a = from[0];
        const float4 b = from[1];
        const float raw[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        for (int i = 0; i < 8; ++i) {
            out[i] = raw[i];
        }
    } else if constexpr (kBytesOf<kType> == 2) {
        const uint4 raw = *reinterpret_cast<const uint4*>(
                static_cast<const uint16_t*>(x) + first);
        const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
        for (int i = 0; i < 8; ++i) {
            const uint32_t bits = words[i / 2] >> 16 * (i % 2) & 0xFFFF;
            out[i] = kType == RowType::float16
                    ? __half2float(__ushort_as_half(uint16_t(bits)))
                    : __uint_as_float(bits << 16);
        }
    } else {
        const uint2 raw = *reinterpret_cast<const uint2*>(
                static_cast<const uint8_t*>(x) + first);
        const uint32_t words[2] = {raw.x, raw.y};
        for (int i = 0; i < 8; ++i) {
            const uint32_t bits = words[i / 4] >> 8 * (i % 4) & 0xFF;
            out[i] = kType == RowType::int8 ? float(int8_t(bits)) : float(bits);
        }
    }
}

template <RowType kType>
__global__ void __launch_bounds__(kThreads)
        condition_rows_kernel(SourceRows rows, HalfRows out, int64_t n_padded) {
    const int lane = threadIdx.x % kLanes;
    const int64_t chunks = out.d_padded / HalfLayout::kChunk;
    constexpr int64_t kBytes = kBytesOf<kType>;
    constexpr int64_t kAligned = kBytes == 4 ? 16 : 8 * kBytes;
    const bool vectors = rows.d * kBytes % kAligned == 0 &&
            reinterpret_cast<uintptr_t>(rows.x) % kAligned == 0;
    const int64_t step = int64_t(gridDim.x) * (kThreads / kLanes);
    // The lanes of a warp stay together: n_padded is even.
    for (int64_t row =
                 blockIdx.x * int64_t(kThreads / kLanes) + threadIdx.x / kLanes;
         row < n_padded;
         row += step) {
        float squared = 0;
        for (int64_t c = lane; c < chunks; c += kLanes) {
            const int64_t first = c * HalfLayout::kChunk;
            float v[8] = {};
            if (row < rows.n && vectors && first + 8 <= rows.d) {
                load_chunk<kType>(rows.x, row * rows.d + first, v);
                for (int i = 0; i < 8; ++i) {
                    v[i] = (v[i] - rows.shift[first + i]) * rows.inverse_scale;
                }
            } else if (row < rows.n) {
                for (int i = 0; i < 8; ++i) {
                    if (first + i < rows.d) {
                        v[i] = rows.value(row, first + i);
                    }
                }
            }
            squared += round_chunk(v, out.chunk(row, c));
        }
        squared = sum_over_lanes(squared);
        if (lane == 0) {
            out.squared[row] = squared;
        }
    }
}

__global__ void __launch_bounds__(kThreads) condition_means_kernel(
        Components components,
        HalfComponents out,
        float2* moves) {
    const int lane = threadIdx.x % kLanes;
    const int64_t chunks = out.d_padded / HalfLayout::kChunk;
    const int64_t component =
            blockIdx.x * int64_t(kThreads / kLanes) + threadIdx.x / kLanes;
    const bool real = component < components.k;
    float squared = 0;
    float moved = 0; // squared
    for (int64_t c = lane; c < chunks; c += kLanes) {
        float v[8] = {};
        for (int i = 0; i < 8; ++i) {
            const int64_t j = c * HalfLayout::kChunk + i;
            if (real && j < components.d) {
                v[i] = components.means[component * components.d + j];
            }
        }
        __half* chunk = out.chunk(component, c);
        float former[8];
        for (int i = 0; i < 8; ++i) {
            former[i] = moves != nullptr ? __half2float(chunk[i]) : 0.0f;
        }
        squared += round_chunk(v, chunk);
        for (int i = 0; i < 8; ++i) {
            const float difference = __half2float(chunk[i]) - former[i];
            moved += difference * difference;
        }
    }
    squared = sum_over_lanes(squared);
    moved = sum_over_lanes(moved);
    if (lane == 0) {
        if (moves != nullptr && real) {
            moves[component] = {sqrtf(moved), squared};
        }
        float2 constant = {1.0f, -INFINITY}; // of padding: never responsible
        if (real) {
            const float precision = components.precision[component];
            constant.x = precision;
            constant.y = components.offset[component] - precision * squared;
        }
        out.constants[component] = constant;
    }
}

} // namespace

void condition_rows(
        const SourceRows& rows,
        const HalfRows& out,
        cudaStream_t stream) {
    const int64_t n_padded = HalfRows::padded_rows(rows.n);
    constexpr int64_t kRowsOfBlock = kThreads / kLanes;
    const int64_t blocks = std::min<int64_t>(
            (n_padded + kRowsOfBlock - 1) / kRowsOfBlock, 1 << 20);
    const auto kernel = rows.type == RowType::float32
            ? condition_rows_kernel<RowType::float32>
            : rows.type == RowType::float16
            ? condition_rows_kernel<RowType::float16>
            : rows.type == RowType::bfloat16
            ? condition_rows_kernel<RowType::bfloat16>
            : rows.type == RowType::int8
            ? condition_rows_kernel<RowType::int8>
            : condition_rows_kernel<RowType::uint8>;
    kernel<<<unsigned(blocks), kThreads, 0, stream>>>(rows, out, n_padded);
    FLASHGMM_CUDA_LAUNCHED("condition_rows");
}

void condition_means(
        const Components& components,
        const HalfComponents& out,
        float2* moves,
        cudaStream_t stream) {
    const int64_t k_padded = out.tiles * HalfComponents::kTile;
    constexpr int64_t kRowsOfBlock = kThreads / kLanes;
    condition_means_kernel<<<
            unsigned(k_padded / kRowsOfBlock),
            kThreads,
            0,
            stream>>>(components, out, moves);
    FLASHGMM_CUDA_LAUNCHED("condition_means");
}

} // namespace faiss_flashgmm::gpu
