#pragma once

#include <cuda_runtime_api.h>

#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

/// Makes a device current, and the former one again on leaving the scope.
class DeviceScope {
   public:
    explicit DeviceScope(int device) {
        FLASHGMM_CUDA(cudaGetDevice(&former_));
        if (device != former_) {
            FLASHGMM_CUDA(cudaSetDevice(device));
        }
    }
    ~DeviceScope() {
        FLASHGMM_CUDA_NO_THROW(cudaSetDevice(former_));
    }
    DeviceScope(const DeviceScope&) = delete;
    DeviceScope& operator=(const DeviceScope&) = delete;

   private:
    int former_ = 0;
};

class Stream {
   public:
    Stream() {
        FLASHGMM_CUDA(
                cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    }
    ~Stream() {
        FLASHGMM_CUDA_NO_THROW(cudaStreamDestroy(stream_));
    }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    operator cudaStream_t() const {
        return stream_;
    }
    void synchronize() const {
        FLASHGMM_CUDA(cudaStreamSynchronize(stream_));
    }
    /// Work given to this stream from now on waits for the event.
    void wait(cudaEvent_t event) const {
        FLASHGMM_CUDA(cudaStreamWaitEvent(stream_, event, 0));
    }

   private:
    cudaStream_t stream_ = nullptr;
};

class Event {
   public:
    enum class Timing { off, on };

    explicit Event(Timing timing = Timing::off) {
        FLASHGMM_CUDA(cudaEventCreateWithFlags(
                &event_,
                timing == Timing::on ? cudaEventDefault
                                     : cudaEventDisableTiming));
    }
    ~Event() {
        FLASHGMM_CUDA_NO_THROW(cudaEventDestroy(event_));
    }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    operator cudaEvent_t() const {
        return event_;
    }
    void record(cudaStream_t stream) const {
        FLASHGMM_CUDA(cudaEventRecord(event_, stream));
    }
    void synchronize() const {
        FLASHGMM_CUDA(cudaEventSynchronize(event_));
    }

   private:
    cudaEvent_t event_ = nullptr;
};

/// Milliseconds between two recorded events with timing on.
inline float milliseconds(const Event& begin, const Event& end) {
    float ms = 0;
    FLASHGMM_CUDA(cudaEventElapsedTime(&ms, begin, end));
    return ms;
}

} // namespace faiss_flashgmm::gpu
