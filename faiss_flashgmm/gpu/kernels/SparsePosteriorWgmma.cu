#include <faiss_flashgmm/gpu/kernels/SparsePosteriorUnits.cuh>

#include <algorithm>

#include <faiss_flashgmm/gpu/kernels/KeepLogits.cuh>
#include <faiss_flashgmm/gpu/ptx/Sm90.cuh>
#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace {

// A block works on 128 rows, past which all components stream in tiles of 256.
// Four warpgroups of consumers take 64 rows and 128 columns each: while some
// look at logits, the others keep the tensor cores busy. One thread keeps the
// copy engine busy.
constexpr int kRowParts = 2;
constexpr int kColumnParts = kWgmmaShape.parts;
constexpr int kConsumers = kRowParts * kColumnParts;
constexpr int kGroupThreads = 128;
constexpr int kThreads = (kConsumers + 1) * kGroupThreads;
constexpr int kGroupRows = 64;
constexpr int kRows = kRowParts * kGroupRows;
constexpr int kColumns = HalfComponents::kTile;
constexpr int kOwnColumns = kColumns / kColumnParts;
constexpr int kProducts = kOwnColumns / 2; // of a thread
static_assert(kRows == kWgmmaShape.tile_rows);
static_assert(kConsumers * kGroupThreads * 2 == kWgmmaShape.streams);
constexpr int kConsumerWarps = kConsumers * kGroupThreads / 32;

// The columns of a component tile come 64 at a time, two blocks of 32, of 16
// KiB each.
constexpr int kStageBlocks = 2;
constexpr int kBlockHalves = kColumns * HalfLayout::kBlock;
constexpr int kStageHalves = kStageBlocks * kBlockHalves;
constexpr int kMaxStages = 4;
/// Bytes of a block of a group of rows, see HalfLayout.
constexpr uint32_t kAtom =
        HalfLayout::kGroup * HalfLayout::kBlock * sizeof(__half);
constexpr int kConstantSlots = 4;
constexpr int kMaxRowBuffers = 2;

// Registers of a thread. The roles share what the block got at its launch:
// asking for more than that would wait forever.
constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
constexpr int kProducerRegisters = 24;
constexpr int kConsumerRegisters = 112;
static_assert(
        kConsumers * kConsumerRegisters + kProducerRegisters <=
        (kConsumers + 1) * kLaunchRegisters);

struct Barriers {
    uint64_t stage_full[kMaxStages];
    uint64_t stage_empty[kMaxStages];
    uint64_t constants_empty[kConstantSlots];
    uint64_t rows_full[kMaxRowBuffers];
    uint64_t rows_empty[kMaxRowBuffers];
};

/// How the shared memory of a block is divided.
struct Layout {
    int row_buffers; ///< 0: rows do not fit and come with each stage again
    int stages;
    size_t stage_bytes; ///< means, then rows if they come along
    size_t bytes;

    static constexpr size_t kLimit = 227 * 1024;
    static constexpr size_t kMeansBytes = kStageHalves * sizeof(__half);
    static constexpr size_t kRowsBytes =
            kRows * kStageBlocks * HalfLayout::kBlock * sizeof(__half);
    /// |x|^2 and seeds of a tile of rows.
    static constexpr size_t kFactsBytes = 2 * kRows * sizeof(float);
    static constexpr size_t kFixedBytes = sizeof(Barriers) +
            kMaxRowBuffers * kFactsBytes +
            kConstantSlots * kColumns * sizeof(float2);

    static constexpr Layout of(int64_t d_padded) {
        const size_t rows = size_t(d_padded) * kRows * sizeof(__half);
        Layout layout{0, 0, kMeansBytes + kRowsBytes, 0};
        for (int buffers = kMaxRowBuffers; buffers > 0; --buffers) {
            if (kFixedBytes + buffers * rows + (buffers + 1) * kMeansBytes <=
                kLimit) {
                layout.row_buffers = buffers;
                layout.stage_bytes = kMeansBytes;
                break;
            }
        }
        const size_t used = kFixedBytes + layout.row_buffers * rows;
        layout.stages = int(std::min<size_t>(
                kMaxStages, (kLimit - used) / layout.stage_bytes));
        layout.bytes = used + layout.stages * layout.stage_bytes;
        return layout;
    }
    /// Buffers for what is known of the rows.
    __host__ __device__ int facts() const {
        return row_buffers > 0 ? row_buffers : 1;
    }
};

/// A slot of a ring and the parity of its present round.
struct Cursor {
    int slot = 0;
    uint32_t parity = 0;

    __device__ void advance(int slots) {
        if (++slot == slots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

struct Arguments {
    SparsePosterior p;
    Layout layout;
    int64_t row_tiles;
    KeepOptions keep;
};

struct Shared {
    __half* rows;
    char* stages;
    float* facts;
    float2* constants;
    Barriers* barriers;
};

/// Starts the copy of a tile of rows, or of what is known of them.
__device__ void load_rows(
        const Arguments& args,
        const Shared& shared,
        int64_t tile,
        Cursor& rows) {
    const int64_t size = kRows * args.p.rows.d_padded;
    const bool whole = args.layout.row_buffers > 0;
    const uint32_t bytes = whole ? uint32_t(size * sizeof(__half)) : 0;
    constexpr uint32_t kFactBytes = kRows * sizeof(float);
    const bool seeded = args.p.seeds != nullptr;
    Barriers& barriers = *shared.barriers;
    uint64_t* full = &barriers.rows_full[rows.slot];
    // Released by the consumers after their last product with it.
    ptx::barrier_wait(&barriers.rows_empty[rows.slot], rows.parity ^ 1);
    ptx::barrier_arrive_expect(full, bytes + (seeded ? 2 : 1) * kFactBytes);
    float* facts = shared.facts + rows.slot * 2 * kRows;
    ptx::bulk_copy(facts, args.p.rows.squared + tile * kRows, kFactBytes, full);
    if (seeded) {
        ptx::bulk_copy(
                facts + kRows, args.p.seeds + tile * kRows, kFactBytes, full);
    }
    if (whole) {
        ptx::bulk_copy(
                shared.rows + rows.slot * size,
                args.p.rows.x + tile * size,
                bytes,
                full);
    }
    rows.advance(args.layout.facts());
}

/// Starts the copies of a stage's rows, `own` blocks of columns from b on, that
/// are the share of one of the producer's warps.
__device__ void copy_staged_rows(
        const Arguments& args,
        char* stage,
        int64_t tile,
        int b,
        int own,
        int warp,
        uint64_t* full) {
    constexpr int kWarps = kGroupThreads / 32;
    for (int g = warp; g < kRows / HalfLayout::kGroup; g += kWarps) {
        ptx::bulk_copy(
                stage + Layout::kMeansBytes + g * kStageBlocks * kAtom,
                args.p.rows.chunk(tile * kRows + g * HalfLayout::kGroup, b * 4),
                own * kAtom,
                full);
    }
}

/// Rows that come with each stage are many small copies: too many for the one
/// thread that does all else, so other warps of its group take their share.
__device__ void produce_rows(
        const Arguments& args,
        const Shared& shared,
        int warp) {
    const int blocks = int(args.p.rows.d_padded / HalfLayout::kBlock);
    Barriers& barriers = *shared.barriers;
    Cursor stage;
    for (int64_t tile = blockIdx.x; tile < args.row_tiles; tile += gridDim.x) {
        for (int64_t t = 0; t < args.p.components.tiles; ++t) {
            for (int b = 0; b < blocks; b += kStageBlocks) {
                ptx::barrier_wait(
                        &barriers.stage_empty[stage.slot], stage.parity ^ 1);
                copy_staged_rows(
                        args,
                        shared.stages + stage.slot * args.layout.stage_bytes,
                        tile,
                        b,
                        min(kStageBlocks, blocks - b),
                        warp,
                        &barriers.stage_full[stage.slot]);
                stage.advance(args.layout.stages);
            }
        }
    }
}

__device__ void produce(const Arguments& args, const Shared& shared) {
    const int blocks = int(args.p.rows.d_padded / HalfLayout::kBlock);
    const int64_t tiles = args.p.components.tiles;
    Barriers& barriers = *shared.barriers;
    Cursor rows;
    Cursor stage;
    Cursor constants;
    // The next rows are loaded ahead: as soon as the ring has gone round once
    // in this tile of rows, nobody needs the rows before it any more.
    const int stages_of_tile = (blocks + kStageBlocks - 1) / kStageBlocks;
    const int64_t ahead = args.layout.row_buffers > 1
            ? min(tiles, int64_t(args.layout.stages / stages_of_tile + 1))
            : tiles;
    const bool with_rows = args.layout.row_buffers == 0;
    load_rows(args, shared, blockIdx.x, rows);
    for (int64_t tile = blockIdx.x; tile < args.row_tiles; tile += gridDim.x) {
        const int64_t next = tile + gridDim.x;
        const __half* means = args.p.components.means;
        for (int64_t t = 0; t < tiles; ++t) {
            if (t == ahead && next < args.row_tiles) {
                load_rows(args, shared, next, rows);
            }
            // Released by the consumers after they folded the constants in.
            ptx::barrier_wait(
                    &barriers.constants_empty[constants.slot],
                    constants.parity ^ 1);
            for (int b = 0; b < blocks; b += kStageBlocks) {
                const int own = min(kStageBlocks, blocks - b);
                const uint32_t halves = own * kBlockHalves;
                const uint32_t means_bytes = halves * sizeof(__half);
                const uint32_t rows_bytes = with_rows
                        ? own * kAtom * (kRows / HalfLayout::kGroup)
                        : 0;
                // Released by the consumers when the product is done.
                ptx::barrier_wait(
                        &barriers.stage_empty[stage.slot], stage.parity ^ 1);
                uint64_t* full = &barriers.stage_full[stage.slot];
                constexpr uint32_t kConstantBytes = kColumns * sizeof(float2);
                ptx::barrier_arrive_expect(
                        full,
                        means_bytes + rows_bytes +
                                (b == 0 ? kConstantBytes : 0));
                if (b == 0) {
                    ptx::bulk_copy(
                            shared.constants + constants.slot * kColumns,
                            args.p.components.constants + t * kColumns,
                            kConstantBytes,
                            full);
                    constants.advance(kConstantSlots);
                }
                char* to = shared.stages + stage.slot * args.layout.stage_bytes;
                ptx::bulk_copy(to, means, means_bytes, full);
                if (with_rows) {
                    copy_staged_rows(args, to, tile, b, own, 0, full);
                }
                means += halves;
                stage.advance(args.layout.stages);
            }
        }
        if (ahead == tiles && next < args.row_tiles) {
            load_rows(args, shared, next, rows);
        }
    }
}

/// A warpgroup's place in the block, and its operands.
struct Operands {
    ptx::Operand means; ///< in the first stage
    ptx::Operand rows;
    uint32_t stage_step; ///< from one stage to the next
};

constexpr uint32_t kNextRows = kAtom / 16; ///< block, in chunks
constexpr uint32_t kNextMeans = kBlockHalves * sizeof(__half) / 16;

/// The products with two blocks of columns, or one.
template <int kCount>
__device__ __forceinline__ void multiply_blocks(
        float (&c)[kProducts],
        ptx::Operand x,
        ptx::Operand m,
        bool accumulate) {
    ptx::wgmma_64x128x16(c, x, m, accumulate);
    ptx::wgmma_64x128x16(c, x + 2, m + 2, true);
    if constexpr (kCount > 1) {
        ptx::wgmma_64x128x16(c, x + kNextRows, m + kNextMeans, true);
        ptx::wgmma_64x128x16(c, x + kNextRows + 2, m + kNextMeans + 2, true);
    }
    ptx::wgmma_commit();
}

/// Multiplies with a tile of components; rows may come with each stage.
__device__ __forceinline__ void multiply_tile(
        float (&c)[kProducts],
        int blocks,
        const Operands& operands,
        bool with_rows,
        Barriers& barriers,
        int stages,
        Cursor& stage) {
    const bool first_lane = threadIdx.x % 32 == 0;
    int former = -1;
    for (int b = 0; b < blocks; b += kStageBlocks) {
        ptx::barrier_wait(&barriers.stage_full[stage.slot], stage.parity);
        const uint32_t at = stage.slot * operands.stage_step;
        const ptx::Operand m = operands.means + at;
        const ptx::Operand x = operands.rows + (with_rows ? at : b * kNextRows);
        ptx::wgmma_fence();
        if (b + 1 < blocks) {
            multiply_blocks<2>(c, x, m, b > 0);
        } else {
            multiply_blocks<1>(c, x, m, b > 0);
        }
        if (former >= 0) {
            ptx::wgmma_wait<1>();
            if (first_lane) {
                ptx::barrier_arrive(&barriers.stage_empty[former]);
            }
        }
        former = stage.slot;
        stage.advance(stages);
    }
    ptx::wgmma_wait<0>();
    if (first_lane) {
        ptx::barrier_arrive(&barriers.stage_empty[former]);
    }
}

template <Keep kKeep>
__device__ void consume(
        const Arguments& args,
        const Shared& shared,
        int group) {
    const SparsePosterior& p = args.p;
    const int thread = threadIdx.x % kGroupThreads;
    const int lane = threadIdx.x % 32;
    const int64_t d_padded = p.rows.d_padded;
    const int64_t tiles = p.components.tiles;
    Barriers& barriers = *shared.barriers;
    Cursor rows;
    Cursor stage;
    Cursor constants;
    const uint32_t row_stride =
            uint32_t(HalfLayout::kGroup * d_padded * sizeof(__half));
    const int row_part = group % kRowParts;
    const int column_part = group / kRowParts;
    const bool with_rows = args.layout.row_buffers == 0;
    Operands operands;
    operands.stage_step = uint32_t(args.layout.stage_bytes / 16);
    operands.means = ptx::Operand::of(
            ptx::shared_address(shared.stages) +
                    column_part * kOwnColumns / HalfLayout::kGroup * kAtom,
            kAtom);
    const ptx::Operand staged_rows = ptx::Operand::of(
            ptx::shared_address(shared.stages) + Layout::kMeansBytes +
                    row_part * kGroupRows / HalfLayout::kGroup * kStageBlocks *
                            kAtom,
            kStageBlocks * kAtom);
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
    const int row_in_tile = row_part * kGroupRows + thread / 32 * 16 + lane / 4;
    for (int64_t tile = blockIdx.x; tile < args.row_tiles; tile += gridDim.x) {
        ptx::barrier_wait(&barriers.rows_full[rows.slot], rows.parity);
        RowState row[2];
        uint32_t begin[2];
        const float* facts = shared.facts + rows.slot * 2 * kRows + row_in_tile;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            row[h].squared = facts[8 * h];
            row[h].largest = p.seeds ? facts[kRows + 8 * h] : -INFINITY;
            begin[h] = next[h];
        }
        operands.rows = with_rows
                ? staged_rows
                : ptx::Operand::of(
                          ptx::shared_address(
                                  shared.rows +
                                  (rows.slot * kRowParts + row_part) *
                                          kGroupRows * d_padded),
                          row_stride);

        for (int64_t t = 0; t < tiles; ++t) {
            float c[kProducts];
            multiply_tile(
                    c,
                    int(d_padded / HalfLayout::kBlock),
                    operands,
                    with_rows,
                    barriers,
                    args.layout.stages,
                    stage);
            if (lane == 0 && t == tiles - 1) {
                ptx::barrier_arrive(&barriers.rows_empty[rows.slot]);
            }
            const float4* pairs = reinterpret_cast<const float4*>(
                    shared.constants + constants.slot * kColumns +
                    column_part * kOwnColumns);
            fold_tile<kKeep, kOwnColumns>(
                    c,
                    [&](int j) { return pairs[4 * j + lane % 4]; },
                    uint32_t(t * kColumns + column_part * kOwnColumns),
                    row,
                    args.keep,
                    p.kept.groups,
                    next,
                    end);
            __syncwarp();
            if (lane == 0) {
                ptx::barrier_arrive(&barriers.constants_empty[constants.slot]);
            }
            constants.advance(kConstantSlots);
        }
        rows.advance(args.layout.facts());

#pragma unroll
        for (int h = 0; h < 2; ++h) {
            finish_row<kKeep>(
                    p.kept,
                    tile * kRows + row_in_tile + 8 * h,
                    column_part,
                    row[h],
                    region,
                    begin[h],
                    next[h],
                    end[h]);
        }
    }
}

template <Keep kKeep>
__global__ void __launch_bounds__(kThreads, 1)
        sparse_posterior_kernel(const __grid_constant__ Arguments args) {
    // Offsets from the array itself, so that the compiler sees shared memory.
    extern __shared__ __align__(1024) char memory[];
    const size_t rows_at = args.layout.stages * args.layout.stage_bytes;
    const size_t constants_at = rows_at +
            args.layout.row_buffers * kRows * args.p.rows.d_padded *
                    sizeof(__half);
    const size_t facts_at =
            constants_at + kConstantSlots * kColumns * sizeof(float2);
    const size_t barriers_at = facts_at + kMaxRowBuffers * Layout::kFactsBytes;
    const Shared shared{
            reinterpret_cast<__half*>(memory + rows_at),
            memory,
            reinterpret_cast<float*>(memory + facts_at),
            reinterpret_cast<float2*>(memory + constants_at),
            reinterpret_cast<Barriers*>(memory + barriers_at)};

    if (threadIdx.x == 0) {
        Barriers& barriers = *shared.barriers;
        for (int i = 0; i < kMaxStages; ++i) {
            ptx::barrier_init(&barriers.stage_full[i], 1);
            ptx::barrier_init(&barriers.stage_empty[i], kConsumerWarps);
        }
        for (int i = 0; i < kConstantSlots; ++i) {
            ptx::barrier_init(&barriers.constants_empty[i], kConsumerWarps);
        }
        for (int i = 0; i < kMaxRowBuffers; ++i) {
            ptx::barrier_init(&barriers.rows_full[i], 1);
            ptx::barrier_init(&barriers.rows_empty[i], kConsumerWarps);
        }
        ptx::fence_barrier_init();
    }
    __syncthreads();

    // Of lane 0: so the compiler knows that it is the same for the whole warp.
    const int group =
            __shfl_sync(0xFFFFFFFF, int(threadIdx.x / kGroupThreads), 0);
    if (group == kConsumers) {
        ptx::registers_decrease<kProducerRegisters>();
        const int warp = __shfl_sync(
                0xFFFFFFFF, int(threadIdx.x % kGroupThreads / 32), 0);
        if (threadIdx.x % 32 != 0) {
            // One thread a warp.
        } else if (warp == 0) {
            produce(args, shared);
        } else if (args.layout.row_buffers == 0) {
            produce_rows(args, shared, warp);
        }
    } else {
        ptx::registers_increase<kConsumerRegisters>();
        consume<kKeep>(args, shared, group);
    }
}

template <Keep kKeep>
void launch_keeping(
        const Arguments& args,
        unsigned blocks,
        cudaStream_t stream) {
    const auto kernel = sparse_posterior_kernel<kKeep>;
    FLASHGMM_CUDA(cudaFuncSetAttribute(
            kernel,
            cudaFuncAttributeMaxDynamicSharedMemorySize,
            int(args.layout.bytes)));
    kernel<<<blocks, kThreads, args.layout.bytes, stream>>>(args);
    FLASHGMM_CUDA_LAUNCHED("sparse_posterior_wgmma");
}

} // namespace

void launch_wgmma(const SparsePosterior& p, cudaStream_t stream) {
    const Arguments args{
            p,
            Layout::of(p.rows.d_padded),
            HalfRows::padded_rows(p.rows.n) / kRows,
            {p.bits_kept(), p.m, p.slack}};
    const unsigned blocks = p.kept.shape.blocks;
    if (p.kept.tail != nullptr) {
        launch_keeping<Keep::tail>(args, blocks, stream);
    } else if (p.m > 1) {
        launch_keeping<Keep::top>(args, blocks, stream);
    } else {
        launch_keeping<Keep::near>(args, blocks, stream);
    }
}

} // namespace faiss_flashgmm::gpu
