#pragma once

#include <algorithm>
#include <cstdint>

#include <cuda_fp16.h>

#include <faiss_flashgmm/em/Rows.h>

// What the kernels work on. All pointers are to device memory. Logits are log2
// of weight times density, in conditioned units.

namespace faiss_flashgmm::gpu {

/// Rows as they came, in the user's units.
struct SourceRows {
    int64_t n = 0;
    int64_t d = 0;
    const void* x = nullptr; ///< n * d coordinates
    RowType type = RowType::float32;
    const float* weights = nullptr; ///< size n, or null: all 1
    const float* shift = nullptr;   ///< size d
    float inverse_scale = 1;        ///< a power of two

    SourceRows slice(int64_t begin, int64_t count) const {
        SourceRows rows = *this;
        rows.n = count;
        rows.x = RowView(x, type).from(begin * d).data;
        rows.weights = weights ? weights + begin : nullptr;
        return rows;
    }
#ifdef __CUDACC__
    __device__ float weight(int64_t row) const {
        return weights ? weights[row] : 1.0f;
    }
    /// As it came.
    __device__ float raw(int64_t i) const {
        switch (type) {
            case RowType::float32:
                return static_cast<const float*>(x)[i];
            case RowType::float16:
                return __half2float(static_cast<const __half*>(x)[i]);
            case RowType::bfloat16:
                return __uint_as_float(
                        uint32_t(static_cast<const uint16_t*>(x)[i]) << 16);
            case RowType::int8:
                return static_cast<const int8_t*>(x)[i];
            default:
                return static_cast<const uint8_t*>(x)[i];
        }
    }
    /// In conditioned units.
    __device__ float value(int64_t row, int64_t j) const {
        return (raw(row * d + j) - shift[j]) * inverse_scale;
    }
#endif
};

/** How conditioned fp16 rows lie in memory: as the matrix unit wants them.
 *
 * Eight rows form a group. The group's columns come in blocks of kBlock; in a
 * block a row is 64 bytes, its 16-byte chunk c at c ^ (row / 2 % 4).
 */
struct HalfLayout {
    static constexpr int kBlock = 32; ///< columns of a block
    static constexpr int kChunk = 8;  ///< columns of a 16-byte chunk
    static constexpr int kGroup = 8;  ///< rows of a group

    /// Where chunk c of a row starts, in halves, if a group's next block is
    /// block_stride and the next group group_stride halves further on.
    static __host__ __device__ int64_t
    chunk(int64_t row, int64_t c, int64_t block_stride, int64_t group_stride) {
        return row / kGroup * group_stride + c / 4 * block_stride +
                row % kGroup * kBlock + ((c % 4) ^ (row / 2 % 4)) * kChunk;
    }
    static constexpr int64_t padded(int64_t d) {
        return (d + kBlock - 1) / kBlock * kBlock;
    }
};

/// A group's blocks follow each other: a row is within 16 * d_padded bytes.
struct HalfRows {
    /// Rows come in multiples of this, and are sliced at them.
    static constexpr int64_t kPadding = 384;

    int64_t n = 0;
    int64_t d_padded = 0; ///< a multiple of HalfLayout::kBlock, zero-filled
    __half* x = nullptr;  ///< padded: rows past n are zero
    /// |x|^2 of the rounded row, or infinity if it does not fit fp16.
    float* squared = nullptr;

    __host__ __device__ __half* chunk(int64_t row, int64_t c) const {
        return x +
                HalfLayout::chunk(
                        row,
                        c,
                        HalfLayout::kGroup * HalfLayout::kBlock,
                        HalfLayout::kGroup * d_padded);
    }

    /// The rows from a multiple of kPadding on.
    HalfRows slice(int64_t begin, int64_t count) const {
        return {count, d_padded, x + begin * d_padded, squared + begin};
    }
    /// Rows that x and squared must have space for.
    static constexpr int64_t padded_rows(int64_t n) {
        return (n + kPadding - 1) / kPadding * kPadding;
    }
};

/// logit = offset - precision * |x - mean|^2
struct Components {
    int64_t k = 0;
    int64_t d = 0;
    const float* means = nullptr;     ///< size k * d, conditioned
    const float* precision = nullptr; ///< size k: log2(e) / (2 variance)
    const float* offset = nullptr;    ///< size k, without |mean|^2
};

/// logit = y + precision * (2 x.mean - |x|^2), with y = offset - precision *
/// |mean|^2 and everything of the rounded means.
struct HalfComponents {
    /// Means of a tile lie block after block, for the pipeline of pass 1.
    static constexpr int kTile = 256;

    int64_t tiles = 0;
    int64_t d_padded = 0;
    __half* means = nullptr;
    float2* constants = nullptr; ///< precision, y; size tiles * kTile

    __host__ __device__ __half* chunk(int64_t component, int64_t c) const {
        return means + component / kTile * kTile * d_padded +
                HalfLayout::chunk(
                        component % kTile,
                        c,
                        kTile * HalfLayout::kBlock,
                        HalfLayout::kGroup * HalfLayout::kBlock);
    }
    static constexpr int64_t padded(int64_t k) {
        return (k + kTile - 1) / kTile * kTile;
    }
};

/// A responsibility that is not negligible.
struct alignas(16) Pair {
    uint32_t bucket; ///< see Buckets
    uint32_t row;
    uint32_t rank; ///< among the bucket's pairs
    /// Row weight times responsibility, which sum to 1 over a row's pairs.
    float value;
};

struct Pairs {
    uint32_t capacity = 0;
    Pair* data = nullptr;
};

/// A pair that lies among those of its bucket.
struct alignas(8) SortedPair {
    uint32_t row;
    float value;
};

/** How pairs are sorted: by stretch of rows, then by component, so that the
 * rows that pass 2 gathers at a time fit the L2.
 */
struct Buckets {
    static constexpr int64_t kMost = 1 << 15; ///< unless k itself is larger

    uint32_t k = 0;
    uint32_t row_shift = 31; ///< log2 of the rows of a stretch
    uint32_t count = 0;      ///< k times the stretches

    static Buckets of(int64_t n, int64_t k, int64_t row_bytes) {
        Buckets buckets;
        buckets.k = uint32_t(k);
        buckets.row_shift = least_shift(row_bytes);
        const auto stretches = [&] {
            return ((n - 1) >> buckets.row_shift) + 1;
        };
        while (stretches() > 1 && stretches() * k > kMost) {
            ++buckets.row_shift;
        }
        buckets.count = uint32_t(stretches() * k);
        return buckets;
    }
    /// No launch of up to n rows has more.
    static int64_t most(int64_t n, int64_t k, int64_t row_bytes) {
        const int64_t stretches = ((n - 1) >> least_shift(row_bytes)) + 1;
        return std::min(std::max(k, kMost), stretches * k);
    }
    static uint32_t least_shift(int64_t row_bytes) {
        constexpr int64_t kStretchBytes = 32 << 20;
        uint32_t shift = 10;
        while (shift < 31 && (row_bytes << shift) < kStretchBytes) {
            ++shift;
        }
        return shift;
    }
    bool operator==(const Buckets&) const = default;

    __device__ uint32_t bucket(uint32_t row, uint32_t component) const {
        return (row >> row_shift) * k + component;
    }
};

/// Sums over the rows of one chunk; each block of a kernel writes its own.
struct RowSums {
    double weight = 0;
    double log2_z = 0;    ///< w log2 Z
    double objective = 0; ///< w |x - mu_best|^2
    double dropped = 0;   ///< w (1 - kept responsibility)
};

/// What the kernels of one chunk count.
struct ChunkState {
    uint32_t pairs;      ///< asked for
    uint32_t listed;     ///< of them, those that did not go to their bucket
    uint32_t dense_rows; ///< rows that the sparse way left out
    uint32_t groups;     ///< of logits that pass 1 kept
};

/// A histogram entry has a memory sector of its own: atomics on neighbours
/// would wait for each other.
constexpr int kCountStride = 8;

/** Where the kernels of one chunk write.
 *
 * A pair goes straight to its bucket if that has room. All others are listed,
 * and sorted later.
 */
struct ChunkOutput {
    static constexpr int kMaxBlocks = 4096;

    Pairs pairs; ///< those that are listed; the capacity holds for all
    Buckets buckets;
    uint32_t* counts = nullptr; ///< size buckets.count * kCountStride, cleared
    /// Size buckets.count + 1: bucket b has room from room[b] to room[b + 1] in
    /// sorted. Or null: no bucket has room.
    const uint32_t* room = nullptr;
    SortedPair* sorted = nullptr;
    uint32_t* dense_rows = nullptr; ///< size n
    ChunkState* state = nullptr;
    RowSums* row_sums = nullptr; ///< size kMaxBlocks

    /// More dense rows than that: start over with fewer rows.
    uint32_t dense_limit = 0xFFFFFFFF;

    /// Whether the chunk counts. If not, nothing must be added up.
    __host__ __device__ bool valid(const ChunkState& s) const {
        return s.pairs <= pairs.capacity && s.dense_rows <= dense_limit;
    }

#ifdef __CUDACC__
    __device__ uint32_t room_of(uint32_t bucket) const {
        return room != nullptr ? room[bucket + 1] - room[bucket] : 0;
    }
    /// Pairs that have gone to their buckets end here.
    __device__ uint32_t room_end() const {
        return room != nullptr ? room[buckets.count] : 0;
    }
    /// The pair's place among those of its bucket.
    __device__ uint32_t take_rank(uint32_t bucket) const {
        return atomicAdd(&counts[int64_t(bucket) * kCountStride], 1u);
    }
    __device__ void list_pair(
            uint32_t to,
            uint32_t component,
            uint32_t row,
            float value) const {
        const uint32_t bucket = buckets.bucket(row, component);
        pairs.data[to] = {bucket, row, take_rank(bucket), value};
    }
#endif
};

/** The pairs of each row, for those who work on whole rows. Null: not kept.
 *
 * Row i has the pairs [begin[i], begin[i] + count[i]); the components that
 * were left out sum to 2^tail[i].
 */
struct RowRanges {
    uint32_t* begin = nullptr;
    uint32_t* count = nullptr;
    float* tail = nullptr;
};

} // namespace faiss_flashgmm::gpu
