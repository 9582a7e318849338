#include <faiss_flashgmm/gpu/kernels/SparsePosteriorUnits.cuh>

#include <algorithm>

#include <faiss_flashgmm/gpu/kernels/KeepLogits.cuh>
#include <faiss_flashgmm/gpu/ptx/Sm90.cuh>
#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace {

// For rows of up to 128 columns. A block works on 192 rows, past which all
// components stream in tiles of 128. Three warpgroups of consumers take 64 rows
// each, which they keep in registers: shared memory, whose bandwidth is the
// bottleneck, then feeds only the means to the tensor cores. One thread keeps
// the copy engine busy.
constexpr int kConsumers = 3;
constexpr int kGroupThreads = 128;
constexpr int kThreads = (kConsumers + 1) * kGroupThreads;
constexpr int kConsumerWarps = kConsumers * kGroupThreads / 32;
constexpr int kGroupRows = 64;
constexpr int kRows = kConsumers * kGroupRows;
constexpr int kColumns = 128;
constexpr int kProducts = kColumns / 2; // of a thread
constexpr int kTilesOfTile = HalfComponents::kTile / kColumns;
static_assert(kRows == kNarrowWgmmaShape.tile_rows);
static_assert(kConsumers * kGroupThreads * 2 == kNarrowWgmmaShape.streams);
static_assert(HalfRows::kPadding % kRows == 0);

// Registers of a thread. The roles share what the block got at its launch:
// asking for more than that would wait forever.
constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
constexpr int kProducerRegisters = 24;
constexpr int kConsumerRegisters = 160;
static_assert(
        kConsumers * kConsumerRegisters + kProducerRegisters <=
        (kConsumers + 1) * kLaunchRegisters);

constexpr int kStages = 5;
constexpr int kConstantSlots = 8;
/// Bytes of a block of columns: of a group of rows, and of a tile's means.
constexpr uint32_t kAtom =
        HalfLayout::kGroup * HalfLayout::kBlock * sizeof(__half);
constexpr uint32_t kBlockBytes = kColumns * HalfLayout::kBlock * sizeof(__half);
constexpr uint32_t kConstantBytes = kColumns * sizeof(float2);
constexpr uint32_t kFactBytes = kRows * sizeof(float);

/// @tparam kBlocks of columns
template <int kBlocks>
struct Shared {
    char stages[kStages][kBlocks * kBlockBytes];
    __half rows[kRows * kBlocks * HalfLayout::kBlock];
    float2 constants[kConstantSlots][kColumns];
    float squared[kRows];
    float seeds[kRows];
    uint64_t stage_full[kStages];
    uint64_t stage_empty[kStages];
    uint64_t constants_empty[kConstantSlots];
    uint64_t rows_full;
    uint64_t rows_empty;
};
static_assert(sizeof(Shared<kNarrow / HalfLayout::kBlock>) <= 227 * 1024);

struct Arguments {
    SparsePosterior p;
    int64_t row_tiles;
    KeepOptions keep;
};

/// A slot of a ring and the parity of its present round.
template <int kSlots>
struct Cursor {
    int slot = 0;
    uint32_t parity = 0;

    __device__ void advance() {
        if (++slot == kSlots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

/// Starts the copy of a tile of rows, and of what is known of them.
template <int kBlocks>
__device__ void load_rows(
        const Arguments& args,
        Shared<kBlocks>& shared,
        int64_t tile,
        uint32_t& parity) {
    constexpr uint32_t kBytes = sizeof(shared.rows);
    const bool seeded = args.p.seeds != nullptr;
    uint64_t* full = &shared.rows_full;
    // Released by the consumers once the former rows are in registers.
    ptx::barrier_wait(&shared.rows_empty, parity ^ 1);
    ptx::barrier_arrive_expect(full, kBytes + (seeded ? 2 : 1) * kFactBytes);
    ptx::bulk_copy(
            shared.squared,
            args.p.rows.squared + tile * kRows,
            kFactBytes,
            full);
    if (seeded) {
        ptx::bulk_copy(
                shared.seeds, args.p.seeds + tile * kRows, kFactBytes, full);
    }
    ptx::bulk_copy(
            shared.rows,
            args.p.rows.x + tile * kRows * kBlocks * HalfLayout::kBlock,
            kBytes,
            full);
    parity ^= 1;
}

template <int kBlocks>
__device__ void produce(const Arguments& args, Shared<kBlocks>& shared) {
    const int64_t tiles = args.p.components.tiles * kTilesOfTile;
    uint32_t rows_parity = 0;
    Cursor<kStages> stage;
    Cursor<kConstantSlots> constants;
    // The next rows are loaded ahead: once the ring has gone round in this tile
    // of rows, all have taken it to their registers.
    const int64_t ahead = min(tiles, int64_t(kStages + 1));
    load_rows(args, shared, blockIdx.x, rows_parity);
    for (int64_t tile = blockIdx.x; tile < args.row_tiles; tile += gridDim.x) {
        const int64_t next = tile + gridDim.x;
        const char* means =
                reinterpret_cast<const char*>(args.p.components.means);
        for (int64_t t = 0; t < tiles; ++t) {
            if (t == ahead && next < args.row_tiles) {
                load_rows(args, shared, next, rows_parity);
            }
            // Released by the consumers after they folded the constants in,
            // and when the product is done.
            ptx::barrier_wait(
                    &shared.constants_empty[constants.slot],
                    constants.parity ^ 1);
            ptx::barrier_wait(
                    &shared.stage_empty[stage.slot], stage.parity ^ 1);
            uint64_t* full = &shared.stage_full[stage.slot];
            ptx::barrier_arrive_expect(
                    full, kBlocks * kBlockBytes + kConstantBytes);
            ptx::bulk_copy(
                    shared.constants[constants.slot],
                    args.p.components.constants + t * kColumns,
                    kConstantBytes,
                    full);
            // Blocks of columns are those of a whole tile of HalfComponents.
#pragma unroll
            for (int b = 0; b < kBlocks; ++b) {
                ptx::bulk_copy(
                        shared.stages[stage.slot] + b * kBlockBytes,
                        means + b * kTilesOfTile * kBlockBytes,
                        kBlockBytes,
                        full);
            }
            // Half tiles lie side by side, whole tiles one after the other.
            means += t % kTilesOfTile == kTilesOfTile - 1
                    ? (kBlocks * kTilesOfTile - (kTilesOfTile - 1)) *
                            int64_t(kBlockBytes)
                    : int64_t(kBlockBytes);
            stage.advance();
            constants.advance();
        }
        if (ahead == tiles && next < args.row_tiles) {
            load_rows(args, shared, next, rows_parity);
        }
    }
}

template <Keep kKeep, int kBlocks>
__device__ void consume(
        const Arguments& args,
        Shared<kBlocks>& shared,
        int group) {
    constexpr int kSteps = 2 * kBlocks; // of 16 columns
    const SparsePosterior& p = args.p;
    const int thread = threadIdx.x % kGroupThreads;
    const int lane = threadIdx.x % 32;
    const int64_t tiles = p.components.tiles * kTilesOfTile;
    const int warp_row = group * kGroupRows + thread / 32 * 16;
    const int first_row = warp_row + lane / 4; // of this thread, in a tile
    const ptx::Operand first_stage =
            ptx::Operand::of(ptx::shared_address(shared.stages), kAtom);
    uint32_t rows_parity = 0;
    Cursor<kStages> stage;
    Cursor<kConstantSlots> constants;
    // The thread's streams of groups, one for each of its two rows of a tile.
    const uint32_t region = p.kept.region_of_block(blockIdx.x);
    uint32_t next[2];
    uint32_t end[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const uint32_t stream = (group * 2 + h) * kGroupThreads + thread;
        next[h] = region + stream * p.kept.groups_of_stream;
        end[h] = next[h] + p.kept.groups_of_stream;
    }
    for (int64_t tile = blockIdx.x; tile < args.row_tiles; tile += gridDim.x) {
        ptx::barrier_wait(&shared.rows_full, rows_parity);
        rows_parity ^= 1;
        uint32_t x[kSteps][4];
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
            const int64_t chunk = HalfLayout::chunk(
                    warp_row + lane % 16,
                    2 * s + lane / 16,
                    HalfLayout::kGroup * HalfLayout::kBlock,
                    HalfLayout::kGroup * HalfLayout::kBlock * kBlocks);
            ptx::load_matrices(x[s], ptx::shared_address(shared.rows + chunk));
        }
        RowState row[2];
        uint32_t begin[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            row[h].squared = shared.squared[first_row + 8 * h];
            row[h].largest =
                    p.seeds ? shared.seeds[first_row + 8 * h] : -INFINITY;
            begin[h] = next[h];
        }
        __syncwarp();
        if (lane == 0) {
            ptx::barrier_arrive(&shared.rows_empty);
        }

        for (int64_t t = 0; t < tiles; ++t) {
            float c[kProducts];
            const ptx::Operand m = first_stage +
                    stage.slot * uint32_t(kBlocks * kBlockBytes / 16);
            ptx::barrier_wait(&shared.stage_full[stage.slot], stage.parity);
            ptx::wgmma_fence();
#pragma unroll
            for (int s = 0; s < kSteps; ++s) {
                ptx::wgmma_64x128x16(
                        c,
                        x[s],
                        m + (s / 2 * (kBlockBytes / 16) + s % 2 * 2),
                        s > 0);
            }
            ptx::wgmma_commit();
            ptx::wgmma_wait<0>();
            if (lane == 0) {
                ptx::barrier_arrive(&shared.stage_empty[stage.slot]);
            }
            const float4* pairs = reinterpret_cast<const float4*>(
                    shared.constants[constants.slot]);
            fold_tile<kKeep, kColumns>(
                    c,
                    [&](int j) { return pairs[4 * j + lane % 4]; },
                    uint32_t(t * kColumns),
                    row,
                    args.keep,
                    p.kept.groups,
                    next,
                    end);
            __syncwarp();
            if (lane == 0) {
                ptx::barrier_arrive(&shared.constants_empty[constants.slot]);
            }
            stage.advance();
            constants.advance();
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            finish_row<kKeep>(
                    p.kept,
                    tile * kRows + first_row + 8 * h,
                    0,
                    row[h],
                    region,
                    begin[h],
                    next[h],
                    end[h]);
        }
    }
}

template <Keep kKeep, int kBlocks>
__global__ void __launch_bounds__(kThreads, 1)
        narrow_posterior_kernel(const __grid_constant__ Arguments args) {
    extern __shared__ __align__(1024) char memory[];
    auto& shared = *reinterpret_cast<Shared<kBlocks>*>(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < kStages; ++i) {
            ptx::barrier_init(&shared.stage_full[i], 1);
            ptx::barrier_init(&shared.stage_empty[i], kConsumerWarps);
        }
        for (int i = 0; i < kConstantSlots; ++i) {
            ptx::barrier_init(&shared.constants_empty[i], kConsumerWarps);
        }
        ptx::barrier_init(&shared.rows_full, 1);
        ptx::barrier_init(&shared.rows_empty, kConsumerWarps);
        ptx::fence_barrier_init();
    }
    __syncthreads();

    // Of lane 0: so the compiler knows that it is the same for the whole warp.
    const int group =
            __shfl_sync(0xFFFFFFFF, int(threadIdx.x / kGroupThreads), 0);
    if (group == kConsumers) {
        ptx::registers_decrease<kProducerRegisters>();
        if (threadIdx.x % kGroupThreads == 0) {
            produce(args, shared);
        }
    } else {
        ptx::registers_increase<kConsumerRegisters>();
        consume<kKeep>(args, shared, group);
    }
}

template <Keep kKeep, int kBlocks>
void launch_kernel(const Arguments& args, cudaStream_t stream) {
    const auto kernel = narrow_posterior_kernel<kKeep, kBlocks>;
    constexpr int kBytes = sizeof(Shared<kBlocks>);
    FLASHGMM_CUDA(cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    kernel<<<args.p.kept.shape.blocks, kThreads, kBytes, stream>>>(args);
    FLASHGMM_CUDA_LAUNCHED("narrow_posterior");
}

template <Keep kKeep>
void launch_keeping(const Arguments& args, cudaStream_t stream) {
    switch (args.p.rows.d_padded / HalfLayout::kBlock) {
        case 1:
            return launch_kernel<kKeep, 1>(args, stream);
        case 2:
            return launch_kernel<kKeep, 2>(args, stream);
        case 3:
            return launch_kernel<kKeep, 3>(args, stream);
        default:
            return launch_kernel<kKeep, 4>(args, stream);
    }
}

} // namespace

void launch_narrow_wgmma(const SparsePosterior& p, cudaStream_t stream) {
    const Arguments args{
            p,
            HalfRows::padded_rows(p.rows.n) / kRows,
            {p.bits_kept(), p.m, p.slack}};
    if (p.kept.tail != nullptr) {
        launch_keeping<Keep::tail>(args, stream);
    } else if (p.m > 1) {
        launch_keeping<Keep::top>(args, stream);
    } else {
        launch_keeping<Keep::near>(args, stream);
    }
}

} // namespace faiss_flashgmm::gpu
