#pragma once

#include <cuda_runtime_api.h>

#include <faiss_flashgmm/gpu/kernels/Params.h>

namespace faiss_flashgmm::gpu {

/// A pair that lies among those of its component.
struct SortedPair {
    uint32_t row;
    float value;
};

/** Pass 2: sums the rows of the pairs, component by component.
 *
 * Pairs are sorted by bucket; a warp sums a segment of them about the mean
 * in fp32, and the segments of a component are added in fp64 in fixed order.
 * Nothing happens if the chunk does not count.
 */
struct PairSums {
    static constexpr int kSegment = 128;

    Components components;
    HalfRows half_rows; ///< x null: float_rows instead
    FloatRows float_rows;
    ChunkOutput chunk;
    int row_sum_blocks = 0; ///< blocks that wrote chunk.row_sums

    uint32_t* offsets = nullptr;         ///< size buckets + 1: pairs before
    uint32_t* segment_offsets = nullptr; ///< size buckets + 1: segments before
    uint32_t* segment_bucket = nullptr;  ///< size max_segments()
    SortedPair* sorted = nullptr;        ///< size chunk.pairs.capacity
    float* partial = nullptr; ///< size max_segments() * partial_stride()

    /// counts | squared | sums | RowSums and the number of pairs; added to
    double* stats = nullptr;

    static int64_t max_segments(int64_t capacity, int64_t buckets) {
        return capacity / kSegment + buckets;
    }
    /// count, squared of each slab of columns, sums
    static int64_t partial_stride(int64_t d);

    /// Where the pairs of each bucket go, by the chunk's counts.
    void locate(cudaStream_t stream) const;
    /// Sorts by bucket; the order within one is that of the ranks.
    void scatter(cudaStream_t stream) const;
    void sum(cudaStream_t stream) const;
};

/** Sorts by bucket, then row: the order, and so every sum, is the same in
 * each run.
 *
 * @param count     number of pairs, at most the capacity
 */
void sort_pairs(const PairSums& sums, int64_t count, cudaStream_t stream);

} // namespace faiss_flashgmm::gpu
