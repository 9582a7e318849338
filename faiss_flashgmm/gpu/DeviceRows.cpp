#include <faiss_flashgmm/gpu/DeviceRows.h>

#include <utility>

#include <faiss_flashgmm/gpu/kernels/ConditionRows.cuh>

namespace faiss_flashgmm::gpu {

namespace {

/// Bytes of rows, as they come, in a slot; half as many rows if less than four
/// times as much is free.
constexpr int64_t kSlotBytes = 128 << 20;

cudaPointerAttributes attributes_of(const void* p) {
    cudaPointerAttributes attributes{};
    FLASHGMM_CUDA(cudaPointerGetAttributes(&attributes, p));
    return attributes;
}

} // namespace

DeviceRows::Waiting::~Waiting() {
    try {
        context.staged.finish();
    } catch (...) { // whoever unwinds has an error of their own
    }
    FLASHGMM_CUDA_NO_THROW(cudaStreamSynchronize(context.copying));
}

int64_t DeviceRows::bytes_of_kept_row(int64_t d, RowType type, bool in_place) {
    return (in_place ? 0 : d * size_of(type) + 4) + 2 * HalfLayout::padded(d) +
            12;
}

int64_t DeviceRows::bytes_of_slot_row(int64_t d, RowType type) {
    return d * size_of(type) + 4 + 2 * HalfLayout::padded(d) + 4;
}

int64_t DeviceRows::bytes_of_slots() {
    return 2 * 3 * kSlotBytes; // fp16 takes at most twice a row of bytes
}

void DeviceRows::set_dimension(int64_t d) {
    d_ = d;
}

void DeviceRows::set_conditioning(const Conditioning& conditioning) {
    if (conditioning.shift == conditioning_.shift &&
        conditioning.scale == conditioning_.scale) {
        return;
    }
    conditioning_ = conditioning;
    shift_.reserve(d_, "the shift of the rows");
    FLASHGMM_CUDA(cudaMemcpyAsync(
            shift_.get(),
            conditioning_.shift.data(),
            d_ * sizeof(float),
            cudaMemcpyHostToDevice,
            context_.compute));
    for (auto& [key, r] : kept_) {
        r.half_rows.x = nullptr;
        r.memory.mixture = -1; // its distances are of other units
    }
}

void DeviceRows::give_conditioning(SourceRows& rows) const {
    rows.shift = shift_.get();
    rows.inverse_scale = float(1 / conditioning_.scale);
}

void DeviceRows::begin_fit(int64_t reserved_bytes) {
    end_fit();
    keeping_ = true;
    reserved_bytes_ = reserved_bytes;
}

void DeviceRows::end_fit() {
    if (!kept_.empty()) {
        FLASHGMM_CUDA(cudaStreamSynchronize(context_.compute));
    }
    kept_.clear();
    keeping_ = false;
}

void DeviceRows::forget(int64_t source) {
    FLASHGMM_CUDA(cudaStreamSynchronize(context_.compute));
    std::erase_if(kept_, [&](const auto& entry) {
        return entry.first.source == source;
    });
}

bool DeviceRows::on_device(const void* x) const {
    const cudaPointerAttributes attributes = attributes_of(x);
    return attributes.type == cudaMemoryTypeManaged ||
            (attributes.type == cudaMemoryTypeDevice &&
             attributes.device == context_.device);
}

Rows DeviceRows::slice(const Rows& rows, int64_t first, int64_t count) const {
    return {count,
            rows.x.from(first * d_),
            rows.weights ? rows.weights + first : nullptr};
}

SourceRows DeviceRows::view(const Rows& rows) const {
    SourceRows result;
    result.n = rows.n;
    result.d = d_;
    result.x = rows.x.data;
    result.type = rows.x.type;
    result.weights = rows.weights;
    give_conditioning(result);
    return result;
}

/// Rows that stay on the device, or null if these do not.
ResidentRows* DeviceRows::kept(const Rows& rows) {
    if (!keeping_ || rows.key.source < 0) {
        return nullptr;
    }
    auto found = kept_.find(rows.key);
    if (found == kept_.end()) {
        const bool in_place = on_device(rows.x.data);
        const int64_t bytes = reserved_bytes_ +
                HalfRows::padded_rows(rows.n) *
                        bytes_of_kept_row(d_, rows.x.type, in_place);
        if (bytes > context_.memory.available()) {
            return nullptr;
        }
        try {
            found = kept_.emplace(rows.key, make_kept(rows)).first;
        } catch (const OutOfMemory&) {
            return nullptr;
        }
    }
    return &found->second;
}

ResidentRows DeviceRows::make_kept(const Rows& rows) {
    ResidentRows r(context_.memory);
    if (on_device(rows.x.data)) {
        check_weights(rows);
        r.rows = view(rows);
    } else {
        const Waiting waiting{context_};
        fill(r, rows);
        context_.staged.finish();
        slot_copied_[0].record(context_.copying);
        context_.compute.wait(slot_copied_[0]);
    }
    // Now, so that they fit later.
    const int64_t padded = HalfRows::padded_rows(rows.n);
    if (context_.options.precision != CudaPrecision::reference) {
        r.half.reserve(padded * HalfLayout::padded(d_), "the fp16 rows");
        r.squared.reserve(padded, "the rows' norms");
    }
    r.memory.best.reserve(rows.n, "the rows' components");
    FLASHGMM_CUDA(cudaMemsetAsync(
            r.memory.best.get(),
            0xFF,
            r.memory.best.bytes(),
            context_.compute));
    r.memory.distances.reserve(rows.n, "the rows' distances");
    return r;
}

/// Rows in place need their weights beside them.
void DeviceRows::check_weights(const Rows& rows) const {
    FLASHGMM_THROW_IF_NOT_FMT(
            rows.weights == nullptr || on_device(rows.weights),
            "the rows are in memory of CUDA device %d, their weights are not",
            context_.device);
}

void DeviceRows::borrow(const Rows& rows) {
    check_weights(rows);
    borrowed_.rows = view(rows);
    borrowed_.half_rows.x = nullptr;
}

/// Space for the largest piece in both slots. Returns its rows.
int64_t DeviceRows::reserve_slots(const Rows& rows, int64_t step, bool half) {
    const int64_t row_bytes = bytes_of_slot_row(d_, rows.x.type);
    const int64_t held =
            int64_t(slots_[0].x.bytes() + slots_[0].half.bytes() +
                    slots_[1].x.bytes() + slots_[1].half.bytes());
    const int64_t share = (context_.memory.available() + held) / 8;
    const int64_t fit = std::min(
            kSlotBytes / (d_ * size_of(rows.x.type)), share / row_bytes);
    const int64_t whole = HalfRows::padded_rows(1);
    step = std::min(step, std::max(whole, fit / whole * whole));
    const int64_t count = std::min(step, rows.n);
    const int64_t padded = HalfRows::padded_rows(count);
    for (int i = 0; i < (rows.n > step ? 2 : 1); ++i) {
        ResidentRows& r = slots_[i];
        r.x.reserve(count * d_ * size_of(rows.x.type), "the rows");
        if (rows.weights != nullptr) {
            r.weights.reserve(count, "the row weights");
        }
        if (half) {
            r.half.reserve(padded * HalfLayout::padded(d_), "the fp16 rows");
            r.squared.reserve(padded, "the rows' norms");
        }
    }
    return step;
}

/// Puts rows on their way, behind what still works on the slot.
void DeviceRows::start(int slot, const Rows& rows) {
    context_.copying.wait(slot_free_[slot]);
    fill(slots_[slot], rows);
}

/// What is computed from now on finds the rows of the slot.
void DeviceRows::arrive(int slot) {
    context_.staged.finish();
    slot_copied_[slot].record(context_.copying);
    context_.timer.time(&CudaTimes::copy_rows, context_.compute, [&] {
        context_.compute.wait(slot_copied_[slot]);
    });
}

void DeviceRows::fill(ResidentRows& r, const Rows& rows) {
    const int64_t bytes = rows.n * d_ * size_of(rows.x.type);
    Rows here = rows;
    if (rows.weights != nullptr) {
        r.weights.reserve(rows.n, "the row weights");
        copy_in(r.weights.get(), rows.weights, rows.n * sizeof(float));
        here.weights = r.weights.get();
    }
    r.x.reserve(bytes, "the rows");
    copy_in(r.x.get(), rows.x.data, bytes);
    here.x.data = r.x.get();
    r.rows = view(here);
    r.half_rows.x = nullptr;
}

void DeviceRows::copy_in(void* to, const void* from, int64_t bytes) {
    if (attributes_of(from).type == cudaMemoryTypeUnregistered) {
        context_.staged.start(to, from, size_t(bytes));
        return;
    }
    FLASHGMM_CUDA(cudaMemcpyAsync(
            to, from, size_t(bytes), cudaMemcpyDefault, context_.copying));
}

/// The fp16 form, if it is needed and not there.
void DeviceRows::condition(ResidentRows& r, bool half) {
    give_conditioning(r.rows);
    if (!half || r.half_rows.x != nullptr) {
        return;
    }
    const int64_t padded = HalfRows::padded_rows(r.rows.n);
    const int64_t d_padded = HalfLayout::padded(d_);
    r.half.reserve(padded * d_padded, "the fp16 rows");
    r.squared.reserve(padded, "the rows' norms");
    r.half_rows = {r.rows.n, d_padded, r.half.get(), r.squared.get()};
    context_.timer.time(&CudaTimes::condition, context_.compute, [&] {
        condition_rows(r.rows, r.half_rows, context_.compute);
    });
}

} // namespace faiss_flashgmm::gpu
