#pragma once

#include <cstdint>

#include <faiss_flashgmm/gpu/DeviceContext.h>
#include <faiss_flashgmm/gpu/DeviceMixture.h>
#include <faiss_flashgmm/gpu/kernels/DensePosterior.cuh>
#include <faiss_flashgmm/gpu/kernels/EmitPairs.cuh>
#include <faiss_flashgmm/gpu/kernels/PairSums.cuh>
#include <faiss_flashgmm/gpu/kernels/RefinePairs.cuh>
#include <faiss_flashgmm/gpu/kernels/SeedRows.cuh>
#include <faiss_flashgmm/gpu/kernels/SparsePosterior.cuh>
#include <faiss_flashgmm/gpu/utils/Buffer.h>

namespace faiss_flashgmm::gpu {

/** The memory of one launch, and the parameters of the kernels that work in
 * it. One launch is under way at a time.
 */
class Launch {
   public:
    Launch(DeviceContext& context, const DeviceMixture& mixture);

    /// Rows of the largest launch at present.
    int64_t rows() const;
    /// Launches of more than so many rows did not fit.
    void limit_rows(int64_t rows);
    /// After each iteration: fewer rows may have been a passing need.
    void relax_rows();

    /// Calls of so many rows will come: memory is taken once, for them.
    void expect(int64_t n);
    /// If memory is short: space for the least launch, before rows take it.
    void secure();
    /// Space for launches of up to n rows; fewer rows if memory is short.
    void reserve(int64_t n);
    /// Bytes of device memory for launches of so many rows.
    static int64_t bytes(int64_t rows, int64_t k, int64_t d);

    /// Before the kernels of n rows.
    void clear(int64_t n);
    /// Without room in the buckets.
    ChunkOutput output(int64_t n) const;
    /// Pairs that there can be room for in the buckets, all together.
    uint32_t room_limit() const {
        return uint32_t(int64_t(sorted_.size()) - capacity_);
    }
    RowRanges row_ranges() const;
    /// @param with_tail  sum what is not kept
    SparsePosterior sparse_posterior(
            const HalfRows& half,
            float min_responsibility,
            bool with_tail) const;
    EmitPairs emit_pairs(const SourceRows& rows, const SparsePosterior& pass)
            const;
    RefinePairs refine_pairs(const SourceRows& rows) const;
    SeedRows seed_rows(const HalfRows& half, const uint32_t* best) const;
    /// @param half     rows to sum; x null: sum rows instead
    PairSums pair_sums(
            const SourceRows& rows,
            const HalfRows& half,
            double* stats) const;

    /// Calls work(posterior) for batches of rows whose logits fit; all rows
    /// if list is null.
    template <class Work>
    void for_dense_batches(
            const SourceRows& rows,
            const uint32_t* list,
            int64_t count,
            Work&& work) const {
        const int64_t batch = dense_batch();
        for (int64_t first = 0; first < count; first += batch) {
            DensePosterior posterior;
            posterior.rows = rows;
            posterior.components = mixture_.components();
            posterior.list = list ? list + first : nullptr;
            posterior.logits = logits_.get();
            posterior.first = first;
            posterior.count = std::min(batch, count - first);
            posterior.launch(context_.compute);
            work(posterior);
        }
    }

    /// Sends the counters to the host, behind the kernels so far.
    void copy_state();
    /// Waits for the counters.
    const ChunkState& state();
    /// The rows that the sparse way left out; how many by state(). In
    /// deterministic mode in order.
    const uint32_t* dense_list();

   private:
    struct Sizes;
    void reserve_exactly(int64_t rows);
    void release();
    int64_t dense_batch() const;

    DeviceContext& context_;
    const DeviceMixture& mixture_;
    int64_t rows_;
    int64_t expected_ = 0;
    int64_t capacity_ = 0;   ///< pairs
    int64_t last_pairs_ = 0; ///< of the last launch

    template <class T>
    using Device = DeviceBuffer<T>;
    Device<Pair> pairs_{context_.memory};
    Device<uint32_t> counts_{context_.memory};
    Device<uint32_t> dense_list_{context_.memory};
    Device<ChunkState> state_{context_.memory};
    Device<RowSums> row_sums_{context_.memory};
    Device<uint32_t> range_begin_{context_.memory};
    Device<uint32_t> range_count_{context_.memory};
    Device<float> range_tail_{context_.memory};
    Device<LogitGroup> groups_{context_.memory};
    Device<uint32_t> group_lists_{context_.memory};
    Device<float> largest_{context_.memory};
    Device<float> tail_{context_.memory};
    Device<float> seeds_{context_.memory};
    Device<uint32_t> offsets_{context_.memory};
    Device<uint32_t> segment_offsets_{context_.memory};
    Device<Segment> segments_{context_.memory};
    Device<SortedPair> sorted_{context_.memory};
    Device<float> partial_{context_.memory};
    Device<float> logits_{context_.memory};
    PinnedBuffer<ChunkState> host_state_;
    Event state_copied_;
};

} // namespace faiss_flashgmm::gpu
