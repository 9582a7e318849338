#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <faiss_flashgmm/gpu/DeviceContext.h>
#include <faiss_flashgmm/gpu/DeviceRows.h>
#include <faiss_flashgmm/gpu/NearestRows.h>
#include <faiss_flashgmm/gpu/kernels/NearDistances.cuh>
#include <faiss_flashgmm/gpu/utils/Buffer.h>

namespace faiss_flashgmm::gpu {

/// fp16 rows in memory of their own.
struct RoundedBuffer {
    explicit RoundedBuffer(DeviceMemory& memory)
            : half(memory), squared(memory), errors(memory) {}

    void reserve(int64_t n, int64_t d, const char* what) {
        const int64_t padded = HalfRows::padded_rows(n);
        half.reserve(padded * HalfLayout::padded(d), what);
        squared.reserve(padded, what);
        errors.reserve(padded, what);
    }
    RoundedRows rows(int64_t n, int64_t d) const {
        return {{n, HalfLayout::padded(d), half.get(), squared.get()},
                errors.get()};
    }

    DeviceBuffer<__half> half;
    DeviceBuffer<float> squared;
    DeviceBuffer<float> errors;
};

/// What the kernels of a piece of the base count.
struct NearCounters {
    uint32_t overflow; ///< see NearCandidates
    uint32_t near;     ///< see MeasureNear
};

/// NearestRows on its device, which is the current one; arguments are checked.
class NearSearch {
   public:
    using Near = NearestRows::Near;

    NearSearch(
            const CudaOptions& options,
            int64_t n,
            int64_t d,
            RowView x,
            bool inner_product);

    void nearest(
            int64_t n,
            RowView x,
            int64_t k,
            const int64_t* self,
            float* distances,
            int64_t* ids);
    void within(
            int64_t n,
            RowView x,
            const float* radii,
            const std::function<
                    void(int64_t, std::span<const std::vector<Near>>)>& visit);

    DeviceContext context;

   private:
    template <class T>
    using Device = DeviceBuffer<T>;

    /// Rounds rows to be asked about, and sets the bounds of within().
    RoundedRows round(const SourceRows& x);
    template <class T>
    void copy(T* to, const T* from, int64_t size) {
        FLASHGMM_CUDA(cudaMemcpyAsync(
                to,
                from,
                size * sizeof(T),
                cudaMemcpyDefault,
                context.compute));
    }
    void clear_counters();
    NearCounters read_counters();

    /// Calls work(block, first row) for all rows, in blocks that fit if a row
    /// takes so many bytes beside what its rounding takes.
    template <class Reserve, class Work>
    void for_blocks(
            int64_t n,
            RowView x,
            int64_t row_bytes,
            Reserve&& reserve,
            Work&& work);

    NearPairs pairs(const SourceRows& x) const;
    /// Lists places [begin, begin + count) of the base; false if some row has
    /// more candidates than there is room for.
    bool find_candidates(
            const RoundedRows& rounded,
            int64_t begin,
            int64_t count,
            uint32_t capacity,
            NearCounters& counters);

    const bool inner_product_;
    const bool sparse_; ///< on the tensor cores
    const MixedOrder order_;
    DeviceRows rows_{context};
    SourceRows base_;
    NearBounds bounds_;
    RowExtent extent_ = {};

    Device<std::byte> base_x_{context.memory};
    RoundedBuffer base_rounded_{context.memory};
    Device<float> starts_{context.memory};
    Device<float> radii_{context.memory};

    RoundedBuffer rounded_{context.memory};
    Device<float> least_{context.memory};
    Device<uint32_t> counts_{context.memory};
    Device<uint32_t> places_{context.memory};
    Device<RowExtent> extents_{context.memory}; ///< of a block, of the base
    Device<NearCounters> counters_{context.memory};
    PinnedBuffer<NearCounters> host_counters_;

    Device<uint64_t> best_{context.memory};
    Device<int64_t> self_{context.memory};
    Device<float> distances_{context.memory};
    Device<int64_t> ids_{context.memory};

    Device<NearRow> near_{context.memory};
    Device<uint32_t> near_begins_{context.memory};
    Device<uint32_t> near_counts_{context.memory};
};

} // namespace faiss_flashgmm::gpu
