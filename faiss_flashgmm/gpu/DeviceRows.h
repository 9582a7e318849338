#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include <faiss_flashgmm/em/Mixture.h>
#include <faiss_flashgmm/em/Rows.h>
#include <faiss_flashgmm/gpu/DeviceContext.h>
#include <faiss_flashgmm/gpu/kernels/Params.h>
#include <faiss_flashgmm/gpu/utils/Buffer.h>

namespace faiss_flashgmm::gpu {

/// What an iteration leaves to the next about rows that stay.
struct RowMemory {
    explicit RowMemory(DeviceMemory& memory)
            : device(memory), best(memory), distances(memory) {}

    DeviceMemory& device;
    DeviceBuffer<uint32_t> best;   ///< the most responsible component
    DeviceBuffer<float> distances; ///< see EmitPairs
    int64_t mixture = -1;          ///< DeviceMixture::number() of both

    /// Room in the buckets of pairs for the launch that starts at a row; see
    /// PairSums::next_room.
    struct Room {
        explicit Room(DeviceMemory& memory) : present(memory), next(memory) {}

        Buckets buckets;
        DeviceBuffer<uint32_t> present;
        DeviceBuffer<uint32_t> next;
    };
    std::map<int64_t, Room> rooms;
};

/// Rows on the device. What is not owned is read in place.
struct ResidentRows {
    explicit ResidentRows(DeviceMemory& memory)
            : x(memory),
              weights(memory),
              half(memory),
              squared(memory),
              memory(memory) {}

    DeviceBuffer<std::byte> x;
    DeviceBuffer<float> weights;
    DeviceBuffer<__half> half;
    DeviceBuffer<float> squared;
    RowMemory memory; ///< of rows that are kept
    SourceRows rows;
    HalfRows half_rows; ///< of the present conditioning, or x is null
};

/// Brings rows to the device, and keeps those that will be needed again.
class DeviceRows {
   public:
    explicit DeviceRows(DeviceContext& context) : context_(context) {}

    /// Of all rows that follow.
    void set_dimension(int64_t d);
    void set_conditioning(const Conditioning& conditioning);
    /// As the rows that come from here.
    void give_conditioning(SourceRows& rows) const;

    /// See Backend::begin_fit. Rows with a key are kept as long as so many
    /// bytes of device memory stay free.
    void begin_fit(int64_t reserved_bytes);
    void end_fit();
    void forget(int64_t source);
    bool has(const RowKey& key) const {
        return kept_.count(key) > 0;
    }

    /** Calls work(rows, first row) with all rows on the device, in pieces.
     *
     * @param step      rows of a piece, at most, unless all are kept
     * @param half      whether the fp16 form is needed
     */
    template <class Work>
    void for_each(const Rows& rows, int64_t step, bool half, Work&& work) {
        if (ResidentRows* r = kept(rows)) {
            condition(*r, half);
            work(*r, 0);
            return;
        }
        if (on_device(rows.x.data)) {
            for (int64_t first = 0; first < rows.n; first += step) {
                borrow(slice(rows, first, std::min(step, rows.n - first)));
                condition(borrowed_, half);
                work(borrowed_, first);
            }
            return;
        }
        const Waiting waiting{context_};
        step = reserve_slots(rows, step, half);
        start(0, slice(rows, 0, std::min(step, rows.n)));
        int use = 0;
        for (int64_t first = 0; first < rows.n; first += step, use ^= 1) {
            ResidentRows& r = slots_[use];
            arrive(use);
            // The next rows are on their way while these are worked on.
            if (const int64_t next = first + step; next < rows.n) {
                start(use ^ 1,
                      slice(rows, next, std::min(step, rows.n - next)));
            }
            condition(r, half);
            work(r, first);
            slot_free_[use].record(context_.compute);
        }
    }

    /// Of device memory that a row of this type takes if it is kept, and if
    /// it is streamed through one of two slots.
    static int64_t bytes_of_kept_row(int64_t d, RowType type, bool in_place);
    static int64_t bytes_of_slot_row(int64_t d, RowType type);
    /// Of all slots, at most.
    static int64_t bytes_of_slots();

   private:
    /// The caller may change the rows when this ends, however it does.
    struct Waiting {
        DeviceContext& context;
        ~Waiting();
    };

    bool on_device(const void* x) const;
    Rows slice(const Rows& rows, int64_t first, int64_t count) const;
    SourceRows view(const Rows& rows) const;

    ResidentRows* kept(const Rows& rows);
    ResidentRows make_kept(const Rows& rows);
    void check_weights(const Rows& rows) const;
    void borrow(const Rows& rows);
    int64_t reserve_slots(const Rows& rows, int64_t step, bool half);
    void start(int slot, const Rows& rows);
    void arrive(int slot);
    void fill(ResidentRows& r, const Rows& rows);
    void copy_in(void* to, const void* from, int64_t bytes);
    void condition(ResidentRows& r, bool half);

    DeviceContext& context_;
    int64_t d_ = 0;
    Conditioning conditioning_;
    DeviceBuffer<float> shift_{context_.memory};

    std::array<ResidentRows, 2> slots_{
            ResidentRows{context_.memory},
            ResidentRows{context_.memory}};
    std::array<Event, 2> slot_copied_;
    std::array<Event, 2> slot_free_;
    ResidentRows borrowed_{context_.memory}; ///< rows in place, fp16 form

    std::map<RowKey, ResidentRows> kept_;
    bool keeping_ = false;
    int64_t reserved_bytes_ = 0;
};

} // namespace faiss_flashgmm::gpu
