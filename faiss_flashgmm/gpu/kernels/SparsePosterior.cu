#include <faiss_flashgmm/gpu/kernels/SparsePosterior.cuh>

#include <algorithm>
#include <cmath>

#include <faiss_flashgmm/gpu/ptx/Sm90.cuh>
#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace {

// A block works on 128 rows, past which all components stream in tiles of 256.
// Four warpgroups of consumers take 64 rows and 128 columns each: while some
// look at logits, the others keep the tensor cores busy. One thread keeps the
// copy engine busy.
constexpr int kRowParts = 2;
constexpr int kColumnParts = KeptLogits::kParts;
constexpr int kConsumers = kRowParts * kColumnParts;
constexpr int kGroupThreads = 128;
constexpr int kThreads = (kConsumers + 1) * kGroupThreads;
constexpr int kRows = kRowParts * HalfRows::kTile;
constexpr int kColumns = HalfComponents::kTile;
constexpr int kOwnColumns = kColumns / kColumnParts;
constexpr int kProducts = kOwnColumns / 2; // of a thread
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

/// Logits are tested by groups: 32 columns of a row, of which each of the
/// row's four threads has 8.
constexpr int kGroups = kOwnColumns / 32;

struct Barriers {
    uint64_t stage_full[kMaxStages];
    uint64_t stage_empty[kMaxStages];
    uint64_t constants_full[kConstantSlots];
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

    static constexpr Layout of(int64_t d_padded) {
        const size_t rows = size_t(d_padded) * kRows * sizeof(__half);
        const size_t fixed =
                sizeof(Barriers) + kConstantSlots * kColumns * sizeof(float2);
        Layout layout{0, 0, kMeansBytes + kRowsBytes, 0};
        for (int buffers = kMaxRowBuffers; buffers > 0; --buffers) {
            if (fixed + buffers * rows + (buffers + 1) * kMeansBytes <=
                kLimit) {
                layout.row_buffers = buffers;
                layout.stage_bytes = kMeansBytes;
                break;
            }
        }
        const size_t used = fixed + layout.row_buffers * rows;
        layout.stages = int(std::min<size_t>(
                kMaxStages, (kLimit - used) / layout.stage_bytes));
        layout.bytes = used + layout.stages * layout.stage_bytes;
        return layout;
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
    float bits_kept; ///< logits so far below the largest do not matter to Z
};

struct Shared {
    __half* rows;
    char* stages;
    float2* constants;
    Barriers* barriers;
};

/// Starts the copy of a tile of rows.
__device__ void load_rows(
        const Arguments& args,
        const Shared& shared,
        int64_t tile,
        Cursor& rows) {
    const int64_t size = kRows * args.p.rows.d_padded;
    const uint32_t bytes = uint32_t(size * sizeof(__half));
    Barriers& barriers = *shared.barriers;
    // Released by the consumers after their last product with it.
    ptx::barrier_wait(&barriers.rows_empty[rows.slot], rows.parity ^ 1);
    ptx::barrier_arrive_expect(&barriers.rows_full[rows.slot], bytes);
    ptx::bulk_copy(
            shared.rows + rows.slot * size,
            args.p.rows.x + tile * size,
            bytes,
            &barriers.rows_full[rows.slot]);
    rows.advance(args.layout.row_buffers);
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
    const int64_t ahead = args.layout.row_buffers > 1
            ? min(tiles,
                  int64_t(args.layout.stages * kStageBlocks / blocks + 1))
            : tiles;
    const bool with_rows = args.layout.row_buffers == 0;
    if (!with_rows) {
        load_rows(args, shared, blockIdx.x, rows);
    }
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
            ptx::barrier_arrive_expect(
                    &barriers.constants_full[constants.slot],
                    kColumns * sizeof(float2));
            ptx::bulk_copy(
                    shared.constants + constants.slot * kColumns,
                    args.p.components.constants + t * kColumns,
                    kColumns * sizeof(float2),
                    &barriers.constants_full[constants.slot]);
            constants.advance(kConstantSlots);

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
                ptx::barrier_arrive_expect(full, means_bytes + rows_bytes);
                char* to = shared.stages + stage.slot * args.layout.stage_bytes;
                ptx::bulk_copy(to, means, means_bytes, full);
                for (int g = 0; with_rows && g < kRows / HalfLayout::kGroup;
                     ++g) {
                    ptx::bulk_copy(
                            to + Layout::kMeansBytes + g * kStageBlocks * kAtom,
                            args.p.rows.chunk(
                                    tile * kRows + g * HalfLayout::kGroup,
                                    b * 4),
                            own * kAtom,
                            full);
                }
                means += halves;
                stage.advance(args.layout.stages);
            }
        }
        if (!with_rows && ahead == tiles && next < args.row_tiles) {
            load_rows(args, shared, next, rows);
        }
    }
}

/// What a thread knows of one of its rows. The four threads of a row agree on
/// largest and second.
struct RowState {
    float squared;
    float largest;
    float second = -INFINITY;
    float threshold = -INFINITY;
};

/// Joins what the four threads of a row found in a tile with the row's state.
template <bool kSecond>
__device__ void join_maxima(
        RowState& row,
        float largest,
        float second,
        float bits_kept,
        float second_slack) {
#pragma unroll
    for (int offset = 1; offset <= 2; offset *= 2) {
        const float other = __shfl_xor_sync(0xFFFFFFFF, largest, offset);
        if constexpr (kSecond) {
            const float other_second =
                    __shfl_xor_sync(0xFFFFFFFF, second, offset);
            second = fmaxf(fminf(largest, other), fmaxf(second, other_second));
        }
        largest = fmaxf(largest, other);
    }
    if constexpr (kSecond) {
        row.second =
                fmaxf(fminf(row.largest, largest), fmaxf(row.second, second));
    }
    row.largest = fmaxf(row.largest, largest);
    row.threshold = row.largest - bits_kept;
    if constexpr (kSecond) {
        row.threshold = fminf(row.threshold, row.second - second_slack);
    }
}

/** Turns products into logits and keeps those that may matter.
 *
 * @param c         products with the tile's means, see wgmma_64x128x16
 * @param next      where each row's next group goes; moves on past `end`, but
 *                  nothing is written there
 */
template <bool kSecond>
__device__ void fold_tile(
        float (&c)[kProducts],
        const float4* constants,
        uint32_t first_component,
        RowState (&row)[2],
        float bits_kept,
        float second_slack,
        LogitGroup* groups,
        uint32_t (&next)[2],
        const uint32_t (&end)[2]) {
    const int quad_lane = threadIdx.x % 4;
    float group_max[2][kGroups];
    float largest[2] = {-INFINITY, -INFINITY};
    float second[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
        group_max[0][g] = group_max[1][g] = -INFINITY;
#pragma unroll
        for (int j = 4 * g; j < 4 * g + 4; ++j) {
            // precision, y of this thread's two columns
            const float4 q = constants[4 * j + quad_lane];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float& a = c[4 * j + 2 * h];
                float& b = c[4 * j + 2 * h + 1];
                a = fmaf(q.x, fmaf(2.0f, a, -row[h].squared), q.y);
                b = fmaf(q.z, fmaf(2.0f, b, -row[h].squared), q.w);
                if constexpr (kSecond) {
                    second[h] = fmaxf(second[h], fminf(largest[h], a));
                    largest[h] = fmaxf(largest[h], a);
                    second[h] = fmaxf(second[h], fminf(largest[h], b));
                    largest[h] = fmaxf(largest[h], b);
                }
                group_max[h][g] = fmaxf(group_max[h][g], fmaxf(a, b));
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        if constexpr (!kSecond) {
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                largest[h] = fmaxf(largest[h], group_max[h][g]);
            }
        }
        join_maxima<kSecond>(
                row[h], largest[h], second[h], bits_kept, second_slack);
    }

    // Whole groups, and no branches: testing single logits takes so much code
    // that it no longer fits the instruction cache.
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const bool matters = group_max[h][g] > row[h].threshold;
            const float* l = c + 16 * g + 2 * h;
            ptx::store_if(
                    matters && next[h] < end[h],
                    groups + next[h],
                    {l[0], l[1]},
                    {l[4], l[5]},
                    {l[8], l[9]},
                    {l[12], l[13]},
                    first_component + 32 * g + 2 * quad_lane);
            next[h] += matters;
        }
    }
}

template <bool kSecond>
__device__ void consume(
        const Arguments& args,
        const Shared& shared,
        int group) {
    const SparsePosterior& p = args.p;
    const int thread = threadIdx.x % kGroupThreads;
    const int lane = threadIdx.x % 32;
    const int64_t d_padded = p.rows.d_padded;
    const int blocks = int(d_padded / HalfLayout::kBlock);
    Barriers& barriers = *shared.barriers;
    Cursor rows;
    Cursor stage;
    Cursor constants;
    const uint32_t row_stride =
            uint32_t(HalfLayout::kGroup * d_padded * sizeof(__half));
    const int row_part = group % kRowParts;
    const int column_part = group / kRowParts;
    const bool with_rows = args.layout.row_buffers == 0;
    // In the first stage; the others are stage_step further on.
    const uint32_t stage_step = uint32_t(args.layout.stage_bytes / 16);
    const uint64_t means_operand = ptx::describe_operand(
            ptx::shared_address(shared.stages) +
                    column_part * kOwnColumns / HalfLayout::kGroup * kAtom,
            kAtom);
    const uint64_t staged_rows_operand = ptx::describe_operand(
            ptx::shared_address(shared.stages) + Layout::kMeansBytes +
                    row_part * HalfRows::kTile / HalfLayout::kGroup *
                            kStageBlocks * kAtom,
            kStageBlocks * kAtom);
    // The thread's streams of groups, one for each of its two rows of a tile.
    uint32_t next[2];
    uint32_t end[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const uint32_t stream =
                ((blockIdx.x * kConsumers + group) * 2 + h) * kGroupThreads +
                thread;
        next[h] = stream * p.kept.groups_of_stream;
        end[h] = next[h] + p.kept.groups_of_stream;
    }
    for (int64_t tile = blockIdx.x; tile < args.row_tiles; tile += gridDim.x) {
        const int64_t first_row = tile * kRows + row_part * HalfRows::kTile +
                thread / 32 * 16 + lane / 4;
        RowState row[2];
        uint32_t begin[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int64_t i = first_row + 8 * h;
            row[h].squared = p.rows.squared[i];
            row[h].largest = p.seeds ? p.seeds[i] : -INFINITY;
            begin[h] = next[h];
        }

        if (!with_rows) {
            ptx::barrier_wait(&barriers.rows_full[rows.slot], rows.parity);
        }
        const uint64_t rows_operand = ptx::describe_operand(
                ptx::shared_address(
                        shared.rows +
                        (rows.slot * kRowParts + row_part) * HalfRows::kTile *
                                d_padded),
                row_stride);

        for (int64_t t = 0; t < p.components.tiles; ++t) {
            float c[kProducts];
            int former = -1;
            for (int b = 0; b < blocks; b += kStageBlocks) {
                ptx::barrier_wait(
                        &barriers.stage_full[stage.slot], stage.parity);
                // Descriptors count in units of 16 bytes.
                const uint32_t at = stage.slot * stage_step;
                const uint64_t m = means_operand + at;
                const uint64_t x = with_rows ? staged_rows_operand + at
                                             : rows_operand + b * (kAtom / 16);
                constexpr uint32_t kNextX = kAtom / 16;
                constexpr uint32_t kNextM = kBlockHalves * sizeof(__half) / 16;
                ptx::wgmma_fence();
                ptx::wgmma_64x128x16(c, x, m, b > 0);
                ptx::wgmma_64x128x16(c, x + 2, m + 2, 1);
                if (b + 1 < blocks) {
                    ptx::wgmma_64x128x16(c, x + kNextX, m + kNextM, 1);
                    ptx::wgmma_64x128x16(c, x + kNextX + 2, m + kNextM + 2, 1);
                }
                ptx::wgmma_commit();
                if (former >= 0) {
                    ptx::wgmma_wait<1>();
                    if (lane == 0) {
                        ptx::barrier_arrive(&barriers.stage_empty[former]);
                    }
                }
                former = stage.slot;
                stage.advance(args.layout.stages);
            }
            ptx::barrier_wait(
                    &barriers.constants_full[constants.slot], constants.parity);
            ptx::wgmma_wait<0>();
            if (lane == 0) {
                ptx::barrier_arrive(&barriers.stage_empty[former]);
                if (!with_rows && t == p.components.tiles - 1) {
                    ptx::barrier_arrive(&barriers.rows_empty[rows.slot]);
                }
            }
            fold_tile<kSecond>(
                    c,
                    reinterpret_cast<const float4*>(
                            shared.constants + constants.slot * kColumns +
                            column_part * kOwnColumns),
                    uint32_t(t * kColumns + column_part * kOwnColumns),
                    row,
                    args.bits_kept,
                    p.second_slack,
                    p.kept.groups,
                    next,
                    end);
            __syncwarp();
            if (lane == 0) {
                ptx::barrier_arrive(&barriers.constants_empty[constants.slot]);
            }
            constants.advance(kConstantSlots);
        }
        rows.advance(args.layout.row_buffers);

#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int64_t i = first_row + 8 * h;
            p.kept.ranges[(i * kColumnParts + column_part) * 4 + lane % 4] = {
                    begin[h],
                    next[h] <= end[h] ? next[h] - begin[h]
                                      : KeptLogits::kOverflow};
            next[h] = min(next[h], end[h]);
            if (lane % 4 == 0) {
                p.kept.largest[i * kColumnParts + column_part] = row[h].largest;
                if constexpr (kSecond) {
                    p.kept.second[i * kColumnParts + column_part] =
                            row[h].second;
                }
            }
        }
    }
}

template <bool kSecond>
__global__ void __launch_bounds__(kThreads, 1)
        sparse_posterior_kernel(const __grid_constant__ Arguments args) {
    // Offsets from the array itself, so that the compiler sees shared memory.
    extern __shared__ __align__(1024) char memory[];
    const size_t rows_at = args.layout.stages * args.layout.stage_bytes;
    const size_t constants_at = rows_at +
            args.layout.row_buffers * kRows * args.p.rows.d_padded *
                    sizeof(__half);
    const size_t barriers_at =
            constants_at + kConstantSlots * kColumns * sizeof(float2);
    const Shared shared{
            reinterpret_cast<__half*>(memory + rows_at),
            memory,
            reinterpret_cast<float2*>(memory + constants_at),
            reinterpret_cast<Barriers*>(memory + barriers_at)};

    if (threadIdx.x == 0) {
        Barriers& barriers = *shared.barriers;
        for (int i = 0; i < kMaxStages; ++i) {
            ptx::barrier_init(&barriers.stage_full[i], 1);
            ptx::barrier_init(&barriers.stage_empty[i], kConsumerWarps);
        }
        for (int i = 0; i < kConstantSlots; ++i) {
            ptx::barrier_init(&barriers.constants_full[i], 1);
            ptx::barrier_init(&barriers.constants_empty[i], kConsumerWarps);
        }
        for (int i = 0; i < kMaxRowBuffers; ++i) {
            ptx::barrier_init(&barriers.rows_full[i], 1);
            ptx::barrier_init(&barriers.rows_empty[i], kConsumerWarps);
        }
        ptx::fence_barrier_init();
    }
    __syncthreads();

    const int group = threadIdx.x / kGroupThreads;
    if (group == kConsumers) {
        ptx::registers_decrease<kProducerRegisters>();
        if (threadIdx.x % kGroupThreads == 0) {
            produce(args, shared);
        }
    } else {
        ptx::registers_increase<kConsumerRegisters>();
        consume<kSecond>(args, shared, group);
    }
}

int multiprocessors() {
    int device = 0;
    int count = 0;
    FLASHGMM_CUDA(cudaGetDevice(&device));
    FLASHGMM_CUDA(cudaDeviceGetAttribute(
            &count, cudaDevAttrMultiProcessorCount, device));
    return count;
}

int64_t blocks_for(int64_t n) {
    return std::min<int64_t>(
            multiprocessors(), HalfRows::padded_rows(n) / kRows);
}

} // namespace

int64_t SparsePosterior::streams(int64_t n) {
    return blocks_for(n) * kConsumers * 2 * kGroupThreads;
}

bool SparsePosterior::supported() {
    int device = 0;
    int major = 0;
    FLASHGMM_CUDA(cudaGetDevice(&device));
    FLASHGMM_CUDA(cudaDeviceGetAttribute(
            &major, cudaDevAttrComputeCapabilityMajor, device));
    return major == 9;
}

void SparsePosterior::launch(cudaStream_t stream) const {
    // All that is left out of Z is less than z_error of it.
    const float bits_of_z =
            std::log2(float(components.tiles * kColumns) / z_error);
    const Arguments args{
            *this,
            Layout::of(rows.d_padded),
            HalfRows::padded_rows(rows.n) / kRows,
            std::max(-std::log2(min_responsibility), bits_of_z)};
    const auto kernel = second_slack >= 0 ? sparse_posterior_kernel<true>
                                          : sparse_posterior_kernel<false>;
    FLASHGMM_CUDA(cudaFuncSetAttribute(
            kernel,
            cudaFuncAttributeMaxDynamicSharedMemorySize,
            int(args.layout.bytes)));
    kernel<<<
            unsigned(blocks_for(rows.n)),
            kThreads,
            args.layout.bytes,
            stream>>>(args);
    FLASHGMM_CUDA_LAUNCHED("sparse_posterior");
}

} // namespace faiss_flashgmm::gpu
