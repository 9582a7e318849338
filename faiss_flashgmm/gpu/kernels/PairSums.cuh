#pragma once

#include <cuda_runtime_api.h>

#include <faiss_flashgmm/gpu/kernels/Params.h>
#include <faiss_flashgmm/gpu/utils/Buffer.h>

namespace faiss_flashgmm::gpu {

/// Pairs of one bucket that are summed at a time.
struct alignas(16) Segment {
    uint32_t bucket;
    uint32_t begin; ///< in chunk.sorted
    uint32_t end;
};

/** Pass 2: sums the rows of the pairs, component by component.
 *
 * Pairs are sorted by bucket; a warp sums a segment of them about the mean
 * in fp32, and the segments of a component are added in fp64 in fixed order.
 * Nothing happens if the chunk does not count.
 *
 * Pairs that went to their buckets stay there. The listed ones are sorted
 * behind the room of all buckets.
 */
struct PairSums {
    static constexpr int kSegment = 128;
    /// A bucket that had p pairs gets room for p (1 + 1 / kSlack) + kSpare.
    static constexpr uint32_t kSlack = 8;
    static constexpr uint32_t kSpare = 32;

    Components components;
    HalfRows half_rows; ///< x null: source_rows instead
    SourceRows source_rows;
    ChunkOutput chunk;
    int row_sum_blocks = 0;     ///< blocks that wrote chunk.row_sums
    int64_t expected_pairs = 0; ///< about; decides the size of the grid

    uint32_t* offsets = nullptr; ///< size buckets + 1: listed pairs before
    uint32_t* segment_offsets = nullptr; ///< size buckets + 1: segments before
    Segment* segments = nullptr;         ///< size max_segments()
    /// Room for the pairs of a launch like this one, within room_limit, or
    /// null; see ChunkOutput::room.
    uint32_t* next_room = nullptr;
    uint32_t room_limit = 0;
    float* partial = nullptr; ///< size max_segments() * partial_stride()

    /// counts | squared | sums | RowSums and the number of pairs; added to
    double* stats = nullptr;

    static int64_t max_segments(int64_t capacity, int64_t buckets) {
        return capacity / kSegment + 2 * buckets;
    }
    /// count, squared of each slab of columns, sums
    static int64_t partial_stride(int64_t d);

    /// Where the pairs of each bucket are to be, by the chunk's counts.
    void locate(cudaStream_t stream) const;
    /// Sorts what is listed; the order within a bucket is that of the ranks.
    void scatter(cudaStream_t stream) const;
    void sum(cudaStream_t stream) const;
};

/// What sort_pairs() works in: 24 bytes a pair, and a little.
struct SortScratch {
    explicit SortScratch(DeviceMemory& device)
            : keys(device), values(device), memory(device) {}

    DeviceBuffer<uint64_t> keys;
    DeviceBuffer<float> values;
    DeviceBuffer<char> memory;
};

/** Sorts by bucket, then row: the order, and so every sum, is the same in
 * each run.
 *
 * @param count     number of pairs, at most the capacity
 */
void sort_pairs(
        const PairSums& sums,
        int64_t count,
        SortScratch& scratch,
        cudaStream_t stream);

} // namespace faiss_flashgmm::gpu
