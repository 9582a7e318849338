#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

namespace faiss_flashgmm::gpu {

/** Copies pageable host memory to the device through small pinned buffers,
 * by threads of its own.
 *
 * The driver copies such memory with one thread, far under the speed of the
 * link.
 */
class StagedCopy {
   public:
    /// @param stream   that the copies are put on
    StagedCopy(int device, cudaStream_t stream);
    ~StagedCopy();
    StagedCopy(const StagedCopy&) = delete;
    StagedCopy& operator=(const StagedCopy&) = delete;

    /// One copy at a time: start() waits for the former.
    void start(void* to, const void* from, size_t bytes);
    /// Once this returns all of the copy is on the stream, and what it was
    /// made from may change. Throws what a thread threw.
    void finish();

   private:
    void work();

    const int device_;
    const cudaStream_t stream_;

    std::mutex mutex_;
    std::condition_variable changed_;
    char* to_ = nullptr;
    const char* from_ = nullptr;
    size_t bytes_ = 0;
    size_t next_ = 0;     ///< where the next piece begins
    int64_t copying_ = 0; ///< threads that are at a piece
    bool stop_ = false;
    std::exception_ptr error_;
    std::vector<std::thread> threads_;
};

} // namespace faiss_flashgmm::gpu
