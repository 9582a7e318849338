#include <faiss_flashgmm/gpu/kernels/SparsePosteriorUnits.cuh>

#include <faiss_flashgmm/gpu/kernels/KeepLogits.cuh>
#include <faiss_flashgmm/gpu/kernels/MmaTile.cuh>
#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace {

// A block works on 128 rows, past which all components stream in tiles of 128.
// A warp has 32 rows and 64 components. Rows and components come block by block
// of 32 columns through a ring that all threads fill; two blocks share a
// multiprocessor, so that one can multiply while the other looks at logits.
constexpr int kThreads = MmaTile::kThreads;
constexpr int kRows = MmaTile::kRows;
constexpr int kColumns = MmaTile::kOthers;
constexpr int kThreadRows = MmaTile::kThreadRows;
constexpr int kTilesOfTile = HalfComponents::kTile / kColumns;
static_assert(kRows == kMmaShape.tile_rows);
static_assert(kThreads * kThreadRows == kMmaShape.streams);
static_assert(MmaTile::kOtherParts == kMmaShape.parts);

constexpr int kStages = 3;

/// A block of columns of a tile of components, for a tile of rows.
struct Place {
    int64_t row_tile;
    int64_t tile = 0; ///< of kColumns components
    int block = 0;

    __device__ void advance(int64_t tiles, int blocks) {
        if (++block == blocks) {
            block = 0;
            if (++tile == tiles) {
                tile = 0;
                row_tile += gridDim.x;
            }
        }
    }
};

__device__ void load(
        const SparsePosterior& p,
        const Place& at,
        MmaTile& stage) {
    MmaTile::load(p.rows, at.row_tile, at.block, stage.rows);
    const char* means = reinterpret_cast<const char*>(
            p.components.means +
            at.tile / kTilesOfTile * HalfComponents::kTile * p.rows.d_padded);
    means += at.block * HalfComponents::kTile * MmaTile::kBlockBytes +
            at.tile % kTilesOfTile * MmaTile::kOthersBytes;
    constexpr int kChunkBytes = MmaTile::kChunkBytes;
#pragma unroll
    for (int i = 0; i < MmaTile::kOthersBytes / kChunkBytes / kThreads; ++i) {
        const int byte = (i * kThreads + threadIdx.x) * kChunkBytes;
        ptx::async_copy(stage.others + byte, means + byte);
    }
}

template <Keep kKeep>
__global__ void __launch_bounds__(kThreads, kMmaShape.blocks)
        sparse_posterior_kernel(
                SparsePosterior p,
                KeepOptions keep,
                int64_t row_tiles) {
    __shared__ __align__(128) MmaTile stages[kStages];
    const int lane = threadIdx.x % 32;
    const int row_part = threadIdx.x / 32 % MmaTile::kRowParts;
    const int column_part = threadIdx.x / 32 / MmaTile::kRowParts;
    const int blocks = int(p.rows.d_padded / HalfLayout::kBlock);
    const int64_t tiles = p.components.tiles * kTilesOfTile;
    const uint32_t region = p.kept.region_of_block(blockIdx.x);
    uint32_t next[kThreadRows];
    uint32_t end[kThreadRows];
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
        next[r] =
                region + (r * kThreads + threadIdx.x) * p.kept.groups_of_stream;
        end[r] = next[r] + p.kept.groups_of_stream;
    }

    Place coming{blockIdx.x};
    const auto load_next = [&](int slot) {
        if (coming.row_tile < row_tiles) {
            load(p, coming, stages[slot]);
            coming.advance(tiles, blocks);
        }
        ptx::async_commit();
    };
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) {
        load_next(s);
    }
    int slot = 0;
    for (int64_t row_tile = blockIdx.x; row_tile < row_tiles;
         row_tile += gridDim.x) {
        const int64_t first_row =
                row_tile * kRows + row_part * MmaTile::kWarpRows + lane / 4;
        RowState row[kThreadRows];
        uint32_t begin[kThreadRows];
#pragma unroll
        for (int r = 0; r < kThreadRows; ++r) {
            row[r].squared = p.rows.squared[first_row + 8 * r];
            row[r].largest = p.seeds ? p.seeds[first_row + 8 * r] : -INFINITY;
            begin[r] = next[r];
        }
        for (int64_t tile = 0; tile < tiles; ++tile) {
            MmaTile::Products c = {};
            for (int b = 0; b < blocks; ++b) {
                ptx::async_wait<kStages - 2>();
                __syncthreads(); // arrived for all, and all left the slot
                                 // before
                load_next(slot == 0 ? kStages - 1 : slot - 1);
                stages[slot].multiply(c, row_part, column_part);
                slot = slot + 1 == kStages ? 0 : slot + 1;
            }
            const int64_t first_component =
                    tile * kColumns + column_part * MmaTile::kWarpOthers;
            const float4* pairs = reinterpret_cast<const float4*>(
                    p.components.constants + first_component);
#pragma unroll
            for (int f = 0; f < MmaTile::kFragments; ++f) {
                fold_tile<kKeep, MmaTile::kWarpOthers>(
                        c[f],
                        [&](int j) { return pairs[4 * j + lane % 4]; },
                        uint32_t(first_component),
                        row + 2 * f,
                        keep,
                        p.kept.groups,
                        next + 2 * f,
                        end + 2 * f);
            }
        }
#pragma unroll
        for (int r = 0; r < kThreadRows; ++r) {
            finish_row<kKeep>(
                    p.kept,
                    first_row + 8 * r,
                    column_part,
                    row[r],
                    region,
                    begin[r],
                    next[r],
                    end[r]);
        }
    }
}

} // namespace

void launch_mma(const SparsePosterior& p, cudaStream_t stream) {
    const auto kernel = p.kept.tail != nullptr
            ? sparse_posterior_kernel<Keep::tail>
            : p.m > 1 ? sparse_posterior_kernel<Keep::top>
                      : sparse_posterior_kernel<Keep::near>;
    const KeepOptions keep{p.bits_kept(), p.m, p.slack};
    const int64_t row_tiles = HalfRows::padded_rows(p.rows.n) / kRows;
    kernel<<<p.kept.shape.blocks, kThreads, 0, stream>>>(p, keep, row_tiles);
    FLASHGMM_CUDA_LAUNCHED("sparse_posterior_mma");
}

} // namespace faiss_flashgmm::gpu
