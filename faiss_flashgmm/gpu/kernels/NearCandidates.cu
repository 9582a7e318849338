#include <faiss_flashgmm/gpu/kernels/NearCandidates.cuh>

#include <algorithm>

#include <faiss_flashgmm/gpu/kernels/MmaTile.cuh>
#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace {

constexpr int kThreads = MmaTile::kThreads;
constexpr int kBlocks = 2; // of a multiprocessor
constexpr int kStages = 3;
static_assert(NearCandidates::kTile == MmaTile::kOthers);
static_assert(HalfRows::kPadding % MmaTile::kRows == 0);

constexpr int kLanes = 16; // that round a row
constexpr float kLargestHalf = 65504.0f;

__device__ float sum_over_lanes(float v) {
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
        v += __shfl_xor_sync(0xFFFFFFFF, v, offset, kLanes);
    }
    return v;
}

/// Of numbers that are not negative.
__device__ void raise_to(float* most, float v) {
    atomicMax(reinterpret_cast<unsigned int*>(most), __float_as_uint(v));
}

__global__ void __launch_bounds__(kThreads)
        round_rows_kernel(RoundRows p, int64_t n_padded) {
    const int lane = threadIdx.x % kLanes;
    const int64_t chunks = p.out.half.d_padded / HalfLayout::kChunk;
    const int64_t step = int64_t(gridDim.x) * (kThreads / kLanes);
    // The lanes of a warp stay together: n_padded is even.
    for (int64_t place =
                 blockIdx.x * int64_t(kThreads / kLanes) + threadIdx.x / kLanes;
         place < n_padded;
         place += step) {
        const bool real = place < p.rows.n;
        const int64_t row =
                real && p.order.n > 0 ? p.order.row(uint32_t(place)) : place;
        float squared = 0;
        float error = 0;
        for (int64_t c = lane; c < chunks; c += kLanes) {
            __align__(16) __half h[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int64_t j = c * HalfLayout::kChunk + i;
                const float v =
                        real && j < p.rows.d ? p.rows.value(row, j) : 0.0f;
                h[i] = __float2half_rn(
                        isnan(v)
                                ? 0.0f
                                : fminf(fmaxf(v, -kLargestHalf), kLargestHalf));
                const float rounded = __half2float(h[i]);
                squared += rounded * rounded;
                error += (v - rounded) * (v - rounded);
            }
            *reinterpret_cast<uint4*>(p.out.half.chunk(place, c)) =
                    *reinterpret_cast<const uint4*>(h);
        }
        squared = sum_over_lanes(squared);
        // Conditioning itself has rounded too.
        error = sqrtf(sum_over_lanes(error)) * (1 + 0x1p-8f);
        error += (sqrtf(squared) + error) * 0x1p-22f;
        if (lane == 0) {
            p.out.half.squared[place] = squared;
            p.out.errors[place] = error;
            if (real && p.extent->squared < squared) {
                raise_to(&p.extent->squared, squared);
            }
            if (real && p.extent->error < error) {
                raise_to(&p.extent->error, error);
            }
        }
    }
}

__global__ void __launch_bounds__(kThreads)
        start_products_kernel(StartProducts p, int64_t n_padded) {
    const int64_t place = blockIdx.x * int64_t(kThreads) + threadIdx.x;
    if (place >= n_padded) {
        return;
    }
    float start = StartProducts::kNever;
    if (place < p.base.half.n) {
        const float squared = p.base.half.squared[place];
        if (p.radii != nullptr) {
            start = -p.bounds.least_product_of(
                    p.radii[p.order.row(uint32_t(place))],
                    squared,
                    p.base.errors[place],
                    *p.rows);
        } else {
            start = p.bounds.inner_product ? 0.0f : -squared / 2;
        }
        start = fmaxf(start, StartProducts::kNever);
    }
    p.starts[place] = start;
}

__global__ void __launch_bounds__(kThreads) start_rows_kernel(
        RoundedRows rows,
        NearBounds bounds,
        float* least,
        int64_t n_padded) {
    const int64_t row = blockIdx.x * int64_t(kThreads) + threadIdx.x;
    if (row < n_padded) {
        least[row] = row >= rows.half.n ? INFINITY
                : bounds.inner_product  ? 0.0f
                                        : rows.half.squared[row] / 2;
    }
}

/// The work of a block: some tiles of the base for a tile of rows at a time.
struct Work {
    int64_t row_tiles;
    int64_t tiles;   ///< of the base
    int64_t segment; ///< tiles that a block takes together

    __device__ int64_t items() const {
        return row_tiles * ((tiles + segment - 1) / segment);
    }
};

/// A block of columns of a pair of tiles.
struct Place {
    int64_t item;
    int64_t row_tile = 0;
    int64_t tile = 0;
    int64_t end = 0; ///< of the item's tiles
    int block = 0;

    __device__ Place(int64_t item, const Work& work) : item(item) {
        begin(work);
    }
    __device__ void begin(const Work& work) {
        row_tile = item % work.row_tiles;
        tile = item / work.row_tiles * work.segment;
        end = min(tile + work.segment, work.tiles);
    }
    __device__ void advance(const Work& work, int blocks) {
        if (++block == blocks) {
            block = 0;
            if (++tile == end) {
                item += gridDim.x;
                begin(work);
            }
        }
    }
};

__global__ void __launch_bounds__(kThreads, kBlocks)
        near_candidates_kernel(NearCandidates p, Work work) {
    __shared__ __align__(128) MmaTile stages[kStages];
    const int lane = threadIdx.x % 32;
    const int row_part = threadIdx.x / 32 % MmaTile::kRowParts;
    const int part = threadIdx.x / 32 / MmaTile::kRowParts;
    const int blocks = int(p.rows.half.d_padded / HalfLayout::kBlock);
    const int64_t first_tile = p.begin / NearCandidates::kTile;
    const int64_t items = work.items();

    Place coming(blockIdx.x, work);
    const auto load_next = [&](int slot) {
        if (coming.item < items) {
            MmaTile::load(
                    p.rows.half,
                    coming.row_tile,
                    coming.block,
                    stages[slot].rows);
            MmaTile::load(
                    p.base.half,
                    first_tile + coming.tile,
                    coming.block,
                    stages[slot].others);
            coming.advance(work, blocks);
        }
        ptx::async_commit();
    };
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) {
        load_next(s);
    }
    int slot = 0;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        Place at(item, work);
        const int64_t first_row = at.row_tile * MmaTile::kRows +
                row_part * MmaTile::kWarpRows + lane / 4;
        float least[MmaTile::kThreadRows];
#pragma unroll
        for (int r = 0; r < MmaTile::kThreadRows; ++r) {
            least[r] = p.least[first_row + 8 * r];
        }
        for (int64_t tile = at.tile; tile < at.end; ++tile) {
            const int64_t first = (first_tile + tile) * MmaTile::kOthers +
                    part * MmaTile::kWarpOthers + lane % 4 * 2;
            MmaTile::Products c;
#pragma unroll
            for (int g = 0; g < MmaTile::kWarpOthers / 8; ++g) {
                const float2 start = *reinterpret_cast<const float2*>(
                        p.starts + first + 8 * g);
#pragma unroll
                for (int r = 0; r < MmaTile::kThreadRows; ++r) {
                    c[r / 2][4 * g + 2 * (r % 2)] = start.x;
                    c[r / 2][4 * g + 2 * (r % 2) + 1] = start.y;
                }
            }
            for (int b = 0; b < blocks; ++b) {
                ptx::async_wait<kStages - 2>();
                __syncthreads(); // arrived for all, and all left the slot
                                 // before
                load_next(slot == 0 ? kStages - 1 : slot - 1);
                stages[slot].multiply(c, row_part, part);
                slot = slot + 1 == kStages ? 0 : slot + 1;
            }
#pragma unroll
            for (int r = 0; r < MmaTile::kThreadRows; ++r) {
                const float* of_row = c[r / 2] + 2 * (r % 2);
                float most = of_row[0];
#pragma unroll
                for (int g = 0; g < MmaTile::kWarpOthers / 8; ++g) {
                    most = fmaxf(most, fmaxf(of_row[4 * g], of_row[4 * g + 1]));
                }
                if (!(most >= least[r])) {
                    continue;
                }
                const int64_t row = first_row + 8 * r;
#pragma unroll
                for (int e = 0; e < MmaTile::kWarpOthers / 4; ++e) {
                    const int64_t place = first + 8 * (e / 2) + e % 2;
                    if (of_row[4 * (e / 2) + e % 2] >= least[r] &&
                        row < p.rows.half.n && place < p.begin + p.count) {
                        const uint32_t to = atomicAdd(&p.counts[row], 1u);
                        if (to < p.capacity) {
                            p.places[row * p.capacity + to] = uint32_t(place);
                        } else {
                            atomicMax(p.overflow, to + 1);
                        }
                    }
                }
            }
        }
    }
}

int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

} // namespace

void RoundRows::launch(cudaStream_t stream) const {
    const int64_t n_padded = HalfRows::padded_rows(rows.n);
    const int64_t blocks =
            std::min<int64_t>(divide_up(n_padded, kThreads / kLanes), 1 << 20);
    round_rows_kernel<<<unsigned(blocks), kThreads, 0, stream>>>(
            *this, n_padded);
    FLASHGMM_CUDA_LAUNCHED("round_rows");
}

void StartProducts::launch(cudaStream_t stream) const {
    const int64_t n_padded = HalfRows::padded_rows(base.half.n);
    start_products_kernel<<<
            unsigned(divide_up(n_padded, kThreads)),
            kThreads,
            0,
            stream>>>(*this, n_padded);
    FLASHGMM_CUDA_LAUNCHED("start_products");
}

void start_rows(
        const RoundedRows& rows,
        const NearBounds& bounds,
        float* least,
        cudaStream_t stream) {
    const int64_t n_padded = HalfRows::padded_rows(rows.half.n);
    start_rows_kernel<<<
            unsigned(divide_up(n_padded, kThreads)),
            kThreads,
            0,
            stream>>>(rows, bounds, least, n_padded);
    FLASHGMM_CUDA_LAUNCHED("start_rows");
}

void NearCandidates::launch(cudaStream_t stream) const {
    int device = 0;
    int processors = 0;
    FLASHGMM_CUDA(cudaGetDevice(&device));
    FLASHGMM_CUDA(cudaDeviceGetAttribute(
            &processors, cudaDevAttrMultiProcessorCount, device));
    Work work;
    work.row_tiles = divide_up(rows.half.n, MmaTile::kRows);
    work.tiles = divide_up(count, MmaTile::kOthers);
    // A few items for each block, so that none is late; long ones, so that
    // their rows come from the L2.
    constexpr int64_t kItems = 8, kLongest = 16;
    work.segment = std::clamp<int64_t>(
            work.row_tiles * work.tiles / (processors * kBlocks * kItems),
            1,
            kLongest);
    const int64_t items = work.row_tiles * divide_up(work.tiles, work.segment);
    const int64_t blocks =
            std::min<int64_t>(items, int64_t(processors) * kBlocks);
    near_candidates_kernel<<<unsigned(blocks), kThreads, 0, stream>>>(
            *this, work);
    FLASHGMM_CUDA_LAUNCHED("near_candidates");
}

} // namespace faiss_flashgmm::gpu
