#include <faiss_flashgmm/gpu/DeviceRows.h>

#include <cstring>
#include <functional>
#include <utility>

#include <faiss_flashgmm/gpu/kernels/ConditionRows.cuh>

namespace faiss_flashgmm::gpu {

namespace {

/// Bytes of rows from host memory that are copied at once.
constexpr int64_t kStagingBytes = 16 << 20;
/// Bytes of rows from host memory that are on the device at once, twice.
constexpr int64_t kStreamedBytes = 256 << 20;

enum class Memory { pageable, pinned, device };

Memory memory_of(const void* p) {
    cudaPointerAttributes attributes{};
    FLASHGMM_CUDA(cudaPointerGetAttributes(&attributes, p));
    switch (attributes.type) {
        case cudaMemoryTypeDevice:
        case cudaMemoryTypeManaged:
            return Memory::device;
        case cudaMemoryTypeHost:
            return Memory::pinned;
        default:
            return Memory::pageable;
    }
}

} // namespace

void DeviceRows::set_conditioning(int64_t d, const Conditioning& conditioning) {
    if (conditioning.shift != conditioning_.shift ||
        conditioning.scale != conditioning_.scale) {
        kept_.clear();
        keep_full_ = false;
    }
    d_ = d;
    conditioning_ = conditioning;
    shift_.reserve(d, "the shift of the rows");
    FLASHGMM_CUDA(cudaMemcpyAsync(
            shift_.get(),
            conditioning_.shift.data(),
            d * sizeof(float),
            cudaMemcpyHostToDevice,
            context_.compute));
}

void DeviceRows::keep(const float* x, int64_t size) {
    context_.compute.synchronize();
    kept_.clear();
    keep_full_ = false;
    stable_begin_ = x;
    stable_end_ = x + size;
}

bool DeviceRows::on_device(const float* x) {
    return memory_of(x) == Memory::device;
}

int64_t DeviceRows::streamed_rows(int64_t step) const {
    return std::min(step, HalfRows::padded_rows(kStreamedBytes / (4 * d_) + 1));
}

/// Rows that stay on the device, or null if these do not.
ResidentRows* DeviceRows::kept(
        int64_t n,
        const float* x,
        const float* weights,
        bool half) {
    if (!std::less_equal<>()(stable_begin_, x) ||
        !std::less_equal<>()(x + n * d_, stable_end_)) {
        return nullptr;
    }
    const RowsKey key{x, weights, n};
    auto found = kept_.find(key);
    if (found == kept_.end()) {
        if (keep_full_) {
            return nullptr;
        }
        try {
            found = kept_.emplace(key, make_kept(n, x, weights, half)).first;
        } catch (const OutOfMemory&) {
            context_.copying.synchronize();
            context_.compute.synchronize();
            keep_full_ = true;
            return nullptr;
        }
    }
    ResidentRows& r = found->second;
    r.rows.shift = shift_.get();
    if (r.half_rows.x == nullptr) { // the mixture had no use for it so far
        condition(r, half);
    }
    return &r;
}

ResidentRows DeviceRows::make_kept(
        int64_t n,
        const float* x,
        const float* weights,
        bool half) {
    ResidentRows r;
    if (on_device(x)) {
        r.rows = view(n, x, weights);
    } else {
        fill(r, n, x, weights);
        slot_copied_[0].record(context_.copying);
        context_.compute.wait(slot_copied_[0]);
    }
    condition(r, half);
    r.memory.best.reserve(n, "the rows' components");
    FLASHGMM_CUDA(cudaMemsetAsync(
            r.memory.best.get(),
            0xFF,
            r.memory.best.bytes(),
            context_.compute));
    r.memory.distances.reserve(n, "the rows' distances");
    return r;
}

ResidentRows& DeviceRows::borrow(
        int64_t n,
        const float* x,
        const float* weights,
        bool half) {
    borrowed_.rows = view(n, x, weights);
    condition(borrowed_, half);
    return borrowed_;
}

ResidentRows& DeviceRows::stream(
        int slot,
        int64_t n,
        const float* x,
        const float* weights,
        bool half) {
    ResidentRows& r = slots_[slot];
    context_.copying.wait(slot_free_[slot]);
    fill(r, n, x, weights);
    slot_copied_[slot].record(context_.copying);
    context_.timer.time(&CudaTimes::copy_rows, context_.compute, [&] {
        context_.compute.wait(slot_copied_[slot]);
    });
    condition(r, half);
    return r;
}

FloatRows DeviceRows::view(int64_t n, const float* x, const float* weights)
        const {
    FloatRows rows;
    rows.n = n;
    rows.d = d_;
    rows.x = x;
    rows.weights = weights;
    rows.shift = shift_.get();
    rows.inverse_scale = float(1 / conditioning_.scale);
    return rows;
}

void DeviceRows::fill(
        ResidentRows& r,
        int64_t n,
        const float* x,
        const float* weights) {
    r.x.reserve(n * d_, "the rows");
    copy_in(r.x.get(), x, n * d_);
    if (weights != nullptr) {
        r.weights.reserve(n, "the row weights");
        copy_in(r.weights.get(), weights, n);
    }
    r.rows = view(n, r.x.get(), weights ? r.weights.get() : nullptr);
}

/// Copies to the device on the copying stream. Pageable memory goes through
/// two pinned buffers, one being filled while the other is copied.
void DeviceRows::copy_in(float* to, const float* from, int64_t size) {
    if (memory_of(from) != Memory::pageable) {
        FLASHGMM_CUDA(cudaMemcpyAsync(
                to,
                from,
                size * sizeof(float),
                cudaMemcpyDefault,
                context_.copying));
        return;
    }
    const int64_t step = kStagingBytes / int64_t(sizeof(float));
    int use = 0;
    for (int64_t done = 0; done < size; done += step, use ^= 1) {
        const int64_t part = std::min(step, size - done);
        staging_free_[use].synchronize();
        staging_[use].reserve(std::min(step, size), "rows on their way");
        std::memcpy(staging_[use].get(), from + done, part * sizeof(float));
        FLASHGMM_CUDA(cudaMemcpyAsync(
                to + done,
                staging_[use].get(),
                part * sizeof(float),
                cudaMemcpyHostToDevice,
                context_.copying));
        staging_free_[use].record(context_.copying);
    }
}

void DeviceRows::condition(ResidentRows& r, bool half) {
    if (!half) {
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
