#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace faiss_flashgmm::gpu {

namespace detail {
void* allocate_device(size_t bytes, const char* what);
void free_device(void* data) noexcept;
void* allocate_pinned(size_t bytes, const char* what);
void free_pinned(void* data) noexcept;
} // namespace detail

/** Memory that only grows, owned; T is trivially copyable.
 *
 * A failing allocation throws OutOfMemory with the bytes asked for and free,
 * and leaves the buffer empty.
 */
template <class T, auto kAllocate, auto kFree>
class Buffer {
   public:
    Buffer() = default;
    Buffer(size_t size, const char* what) {
        reserve(size, what);
    }
    ~Buffer() {
        reset();
    }
    Buffer(Buffer&& other) noexcept
            : data_(std::exchange(other.data_, nullptr)),
              size_(std::exchange(other.size_, 0)) {}
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }

    /// At least size elements; what was stored is lost if it has to grow.
    void reserve(size_t size, const char* what) {
        if (size > size_) {
            reset();
            data_ = static_cast<T*>(kAllocate(size * sizeof(T), what));
            size_ = size;
        }
    }
    void reset() noexcept {
        if (data_ != nullptr) {
            kFree(data_);
        }
        data_ = nullptr;
        size_ = 0;
    }

    T* get() const {
        return data_;
    }
    size_t size() const {
        return size_;
    }
    size_t bytes() const {
        return size_ * sizeof(T);
    }

   private:
    T* data_ = nullptr;
    size_t size_ = 0;
};

/// Memory of the current device.
template <class T>
using DeviceBuffer = Buffer<T, detail::allocate_device, detail::free_device>;

/// Page-locked host memory, which copies at full speed and asynchronously.
template <class T>
using PinnedBuffer = Buffer<T, detail::allocate_pinned, detail::free_pinned>;

/// Page-locks memory that others own, which must stay where it is. If the
/// system does not allow it, copies are slower and nothing else changes.
class PinnedScope {
   public:
    PinnedScope() = default;
    ~PinnedScope() {
        reset();
    }
    PinnedScope(const PinnedScope&) = delete;
    PinnedScope& operator=(const PinnedScope&) = delete;

    void pin(void* data, size_t bytes);
    void reset() noexcept;

   private:
    void* data_ = nullptr;
};

} // namespace faiss_flashgmm::gpu
