#include <faiss_flashgmm/gpu/utils/StagedCopy.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include <faiss_flashgmm/gpu/utils/Buffer.h>
#include <faiss_flashgmm/gpu/utils/Device.h>

namespace faiss_flashgmm::gpu {

namespace {

/// Large enough for the link, small enough to stay in a cache until it is
/// copied on.
constexpr size_t kPiece = size_t(1) << 20;
constexpr unsigned kMostThreads = 8;

} // namespace

StagedCopy::StagedCopy(int device, cudaStream_t stream)
        : device_(device), stream_(stream) {}

StagedCopy::~StagedCopy() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
        next_ = bytes_;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) {
        thread.join();
    }
}

void StagedCopy::start(void* to, const void* from, size_t bytes) {
    finish();
    if (threads_.empty()) {
        const unsigned cores = std::thread::hardware_concurrency();
        for (unsigned i = std::clamp(cores / 2, 1u, kMostThreads); i > 0; --i) {
            threads_.emplace_back([this] { work(); });
        }
    }
    {
        const std::lock_guard lock(mutex_);
        to_ = static_cast<char*>(to);
        from_ = static_cast<const char*>(from);
        bytes_ = bytes;
        next_ = 0;
    }
    changed_.notify_all();
}

void StagedCopy::finish() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return next_ >= bytes_ && copying_ == 0; });
    if (error_) {
        std::rethrow_exception(std::exchange(error_, nullptr));
    }
}

void StagedCopy::work() {
    struct Slot {
        PinnedBuffer<char> buffer;
        Event free;
    };
    // Made by the first piece, on the device.
    std::unique_ptr<std::array<Slot, 2>> slots;
    std::unique_ptr<DeviceScope> scope;
    int use = 0;
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [&] { return stop_ || next_ < bytes_; });
        if (stop_) {
            break;
        }
        const size_t first = next_;
        const size_t size = std::min(kPiece, bytes_ - first);
        next_ += size;
        ++copying_;
        char* const to = to_ + first;
        const char* const from = from_ + first;
        lock.unlock();
        std::exception_ptr error;
        try {
            if (!slots) {
                scope = std::make_unique<DeviceScope>(device_);
                slots = std::make_unique<std::array<Slot, 2>>();
            }
            Slot& slot = (*slots)[use];
            use ^= 1;
            slot.buffer.reserve(kPiece, "rows on their way");
            slot.free.synchronize();
            std::memcpy(slot.buffer.get(), from, size);
            FLASHGMM_CUDA(cudaMemcpyAsync(
                    to,
                    slot.buffer.get(),
                    size,
                    cudaMemcpyHostToDevice,
                    stream_));
            slot.free.record(stream_);
        } catch (...) {
            error = std::current_exception();
        }
        lock.lock();
        --copying_;
        if (error) {
            error_ = error;
            next_ = bytes_;
        }
        if (copying_ == 0 && next_ >= bytes_) {
            changed_.notify_all();
        }
    }
    lock.unlock();
    if (slots) {
        for (Slot& slot : *slots) {
            FLASHGMM_CUDA_NO_THROW(cudaEventSynchronize(slot.free));
        }
    }
}

} // namespace faiss_flashgmm::gpu
