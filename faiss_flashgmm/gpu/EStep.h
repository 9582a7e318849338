#pragma once

#include <cstdint>

#include <faiss_flashgmm/em/Backend.h>
#include <faiss_flashgmm/gpu/DeviceRows.h>
#include <faiss_flashgmm/gpu/Launch.h>

namespace faiss_flashgmm::gpu {

/// Adds rows to the statistics of an iteration: the sequence of kernels.
class EStep {
   public:
    EStep(DeviceContext& context, const DeviceMixture& mixture, Launch& launch)
            : context_(context), mixture_(mixture), launch_(launch) {}

    /// Clears the statistics.
    void begin();
    void accumulate(ResidentRows& rows);
    /// Adds the statistics of another device, with the same mixture.
    void add(const EStep& other);
    /// The sums of all rows since begin(); waits.
    SufficientStats& finish();
    /** Those that are not per component.
     *
     * @param row_sums  see PairSums::stats
     * @param log2_base of the mixture that they were found with
     */
    Backend::Sums scalars(const double* row_sums, double log2_base) const;

    /// See PairSums::stats.
    const double* device_stats() const {
        return device_stats_.get();
    }
    static int64_t stats_size(int64_t k, int64_t d);

    /// Rows since begin() that took the dense way.
    int64_t dense_rows() const {
        return dense_rows_;
    }

   private:
    /// Rows of a launch, and what is remembered of them, if they stay.
    struct Work {
        SourceRows rows;
        HalfRows half;
        int64_t first = 0; ///< of the rows, in memory
        RowMemory* memory = nullptr;
        bool follows = false; ///< the memory is of the mixture before

        Work slice(int64_t begin, int64_t count) const;
        uint32_t* best() const {
            return memory != nullptr ? memory->best.get() + first : nullptr;
        }
    };
    void accumulate_sparse(const Work& work);
    void seed(const Work& work, SparsePosterior& pass);
    RowMemory::Room* room_of(const Work& work);
    /// @param best     component of each row, written, or null
    void accumulate_dense(
            const SourceRows& rows,
            const uint32_t* list,
            int64_t count,
            uint32_t* best);
    void sort(const PairSums& sums);

    DeviceContext& context_;
    const DeviceMixture& mixture_;
    Launch& launch_;

    /// Rows have so many logits near the largest that it is cheaper to sum the
    /// others than to keep more of them.
    bool diffuse_ = false;

    int64_t rows_ = 0;
    int64_t dense_rows_ = 0;
    DeviceBuffer<double> device_stats_{context_.memory};
    DeviceBuffer<double> others_stats_{context_.memory};
    SortScratch sort_scratch_{context_.memory}; ///< in deterministic mode
    PinnedBuffer<double> host_scalars_;
    SufficientStats stats_;
    PinnedScope pinned_stats_;
};

} // namespace faiss_flashgmm::gpu
