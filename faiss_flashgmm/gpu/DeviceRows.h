#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <tuple>

#include <faiss_flashgmm/em/Mixture.h>
#include <faiss_flashgmm/gpu/DeviceContext.h>
#include <faiss_flashgmm/gpu/kernels/Params.h>
#include <faiss_flashgmm/gpu/utils/Buffer.h>

namespace faiss_flashgmm::gpu {

/// What an iteration leaves to the next about rows that stay.
struct RowMemory {
    DeviceBuffer<uint32_t> best;   ///< the most responsible component
    DeviceBuffer<float> distances; ///< see EmitPairs
    int64_t mixture = -1;          ///< DeviceMixture::number() of both

    /// Room in the buckets of pairs for the launch that starts at a row; see
    /// PairSums::next_room.
    struct Room {
        Buckets buckets;
        DeviceBuffer<uint32_t> present;
        DeviceBuffer<uint32_t> next;
    };
    std::map<int64_t, Room> rooms;
};

/// Rows on the device. What is not owned is read in place.
struct ResidentRows {
    DeviceBuffer<float> x;
    DeviceBuffer<float> weights;
    DeviceBuffer<__half> half;
    DeviceBuffer<float> squared;
    RowMemory memory; ///< of rows that are kept
    FloatRows rows;
    HalfRows half_rows; ///< if the tensor cores are used
};

/// Brings rows to the device, and keeps those that will be needed again.
class DeviceRows {
   public:
    explicit DeviceRows(DeviceContext& context) : context_(context) {}

    /// Rows are of dimension d; from now on they are conditioned like this.
    void set_conditioning(int64_t d, const Conditioning& conditioning);

    /// See CudaBackend::keep_rows.
    void keep(const float* x, int64_t size);

    /** Calls work(rows, first row) with all rows on the device, in pieces.
     *
     * @param step      rows of a piece, at most, unless all are kept
     * @param half      whether the fp16 form is needed
     */
    template <class Work>
    void for_each(
            int64_t n,
            const float* x,
            const float* weights,
            int64_t step,
            bool half,
            Work&& work) {
        if (ResidentRows* r = kept(n, x, weights, half)) {
            work(*r, 0);
            return;
        }
        const bool in_place = on_device(x);
        step = in_place ? step : streamed_rows(step);
        int use = 0;
        for (int64_t first = 0; first < n; first += step, use ^= 1) {
            const int64_t count = std::min(step, n - first);
            const float* w = weights ? weights + first : nullptr;
            ResidentRows& r = in_place
                    ? borrow(count, x + first * d_, w, half)
                    : stream(use, count, x + first * d_, w, half);
            work(r, first);
            slot_free_[use].record(context_.compute);
        }
        // The caller may change the rows once this returns.
        context_.copying.synchronize();
    }

   private:
    static bool on_device(const float* x);
    int64_t streamed_rows(int64_t step) const;

    ResidentRows* kept(
            int64_t n,
            const float* x,
            const float* weights,
            bool half);
    ResidentRows& borrow(
            int64_t n,
            const float* x,
            const float* weights,
            bool half);
    ResidentRows& stream(
            int slot,
            int64_t n,
            const float* x,
            const float* weights,
            bool half);
    ResidentRows make_kept(
            int64_t n,
            const float* x,
            const float* weights,
            bool half);
    FloatRows view(int64_t n, const float* x, const float* weights) const;
    void fill(ResidentRows& r, int64_t n, const float* x, const float* weights);
    void copy_in(float* to, const float* from, int64_t size);
    void condition(ResidentRows& r, bool half);

    DeviceContext& context_;
    int64_t d_ = 0;
    Conditioning conditioning_;
    DeviceBuffer<float> shift_;

    std::array<ResidentRows, 2> slots_;
    std::array<Event, 2> slot_copied_;
    std::array<Event, 2> slot_free_;
    std::array<PinnedBuffer<float>, 2> staging_;
    std::array<Event, 2> staging_free_;
    ResidentRows borrowed_; ///< fp16 form of rows in device memory

    using RowsKey = std::tuple<const float*, const float*, int64_t>;
    std::map<RowsKey, ResidentRows> kept_;
    bool keep_full_ = false; ///< no memory to keep more rows
    const float* stable_begin_ = nullptr;
    const float* stable_end_ = nullptr;
};

} // namespace faiss_flashgmm::gpu
