#pragma once

#include <cstddef>
#include <cstdint>

namespace faiss_flashgmm::gpu {

/// Counts and caps what one user allocates on a device.
class DeviceMemory {
   public:
    /// @param limit    bytes; 0: what the device has
    explicit DeviceMemory(int64_t limit = 0) : limit_(limit) {}
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;

    /// On the current device. Throws OutOfMemory with the bytes asked for and
    /// free.
    void* allocate(size_t bytes, const char* what);
    void free(void* data, size_t bytes) noexcept;

    int64_t used() const {
        return used_;
    }
    /// The most that was in use at once.
    int64_t peak() const {
        return peak_;
    }
    /// Bytes that could still be allocated.
    int64_t available() const;

   private:
    int64_t limit_;
    int64_t used_ = 0;
    int64_t peak_ = 0;
};

} // namespace faiss_flashgmm::gpu
