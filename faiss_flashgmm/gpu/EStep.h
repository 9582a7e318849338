#pragma once

#include <cstdint>

#include <faiss_flashgmm/em/SufficientStats.h>
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
    /// The sums of all rows since begin().
    SufficientStats& finish();

    /// Rows since begin() that took the dense way.
    int64_t dense_rows() const {
        return dense_rows_;
    }

   private:
    /// Rows of a launch, and what is remembered of them, if they stay.
    struct Work {
        FloatRows rows;
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
            const FloatRows& rows,
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
    DeviceBuffer<double> device_stats_;
    PinnedBuffer<double> host_scalars_;
    SufficientStats stats_;
    PinnedScope pinned_stats_;
};

} // namespace faiss_flashgmm::gpu
