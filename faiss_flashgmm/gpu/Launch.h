#pragma once

#include <cstdint>

#include <faiss_flashgmm/gpu/DeviceContext.h>
#include <faiss_flashgmm/gpu/DeviceMixture.h>
#include <faiss_flashgmm/gpu/kernels/DensePosterior.cuh>
#include <faiss_flashgmm/gpu/kernels/EmitPairs.cuh>
#include <faiss_flashgmm/gpu/kernels/PairSums.cuh>
#include <faiss_flashgmm/gpu/kernels/RefinePairs.cuh>
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

    /// Space for launches of up to n rows; fewer rows if memory is short.
    void reserve(int64_t n);

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
    EmitPairs emit_pairs(const FloatRows& rows, const SparsePosterior& pass)
            const;
    RefinePairs refine_pairs(const FloatRows& rows) const;
    SeedRows seed_rows(const HalfRows& half, const uint32_t* best) const;
    /// @param half     rows to sum; x null: sum rows instead
    PairSums pair_sums(
            const FloatRows& rows,
            const HalfRows& half,
            double* stats) const;

    /// Calls work(posterior) for batches of rows whose logits fit; all rows
    /// if list is null.
    template <class Work>
    void for_dense_batches(
            const FloatRows& rows,
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
    void reserve_exactly(int64_t rows);
    int64_t dense_batch() const;

    DeviceContext& context_;
    const DeviceMixture& mixture_;
    int64_t rows_;
    int64_t capacity_ = 0;   ///< pairs
    int64_t last_pairs_ = 0; ///< of the last launch

    DeviceBuffer<Pair> pairs_;
    DeviceBuffer<uint32_t> counts_, dense_list_;
    DeviceBuffer<ChunkState> state_;
    DeviceBuffer<RowSums> row_sums_;
    DeviceBuffer<uint32_t> range_begin_, range_count_;
    DeviceBuffer<float> range_tail_;
    DeviceBuffer<LogitGroup> groups_;
    DeviceBuffer<uint32_t> group_lists_;
    DeviceBuffer<float> largest_, tail_, seeds_;
    DeviceBuffer<uint32_t> offsets_, segment_offsets_;
    DeviceBuffer<Segment> segments_;
    DeviceBuffer<SortedPair> sorted_;
    DeviceBuffer<float> partial_, logits_;
    PinnedBuffer<ChunkState> host_state_;
    Event state_copied_;
};

} // namespace faiss_flashgmm::gpu
