#pragma once

#include <exception>
#include <mutex>

namespace faiss_flashgmm {

/// Carries the first exception out of an OpenMP region, where letting it
/// escape would end the process.
class ParallelGuard {
   public:
    template <class Function>
    void run(Function&& function) noexcept {
        try {
            function();
        } catch (...) {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (!first_) {
                first_ = std::current_exception();
            }
        }
    }

    /// Call after the region.
    void rethrow() {
        if (first_) {
            std::rethrow_exception(first_);
        }
    }

   private:
    std::mutex mutex_;
    std::exception_ptr first_;
};

} // namespace faiss_flashgmm
