#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <faiss_flashgmm/gpu/utils/DeviceMemory.h>

namespace faiss_flashgmm::gpu {

/// Page-locked host memory, which copies at full speed and asynchronously.
class PinnedMemory {
   public:
    void* allocate(size_t bytes, const char* what);
    void free(void* data, size_t bytes) noexcept;
};

/** Memory that only grows, owned; T is trivially copyable.
 *
 * A failing allocation throws OutOfMemory with the bytes asked for and free,
 * and leaves the buffer empty.
 */
template <class T, class Memory>
class Buffer {
   public:
    /// @param memory   must outlive the buffer
    explicit Buffer(Memory& memory) : memory_(&memory) {}
    ~Buffer() {
        reset();
    }
    Buffer(Buffer&& other) noexcept
            : memory_(other.memory_),
              data_(std::exchange(other.data_, nullptr)),
              size_(std::exchange(other.size_, 0)) {}
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(memory_, other.memory_);
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }

    /// At least size elements; what was stored is lost if it has to grow.
    void reserve(size_t size, const char* what) {
        if (size > size_) {
            reset();
            data_ = static_cast<T*>(memory_->allocate(size * sizeof(T), what));
            size_ = size;
        }
    }
    void reset() noexcept {
        if (data_ != nullptr) {
            memory_->free(data_, bytes());
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
    Memory* memory_;
    T* data_ = nullptr;
    size_t size_ = 0;
};

/// Memory of the current device.
template <class T>
using DeviceBuffer = Buffer<T, DeviceMemory>;

template <class T>
class PinnedBuffer : public Buffer<T, PinnedMemory> {
   public:
    PinnedBuffer() : Buffer<T, PinnedMemory>(memory()) {}

   private:
    static PinnedMemory& memory() {
        static PinnedMemory all;
        return all;
    }
};

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
