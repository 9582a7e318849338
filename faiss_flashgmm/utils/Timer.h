#pragma once

#include <chrono>

namespace faiss_flashgmm {

/// Wall-clock time since construction or restart().
class Timer {
   public:
    double seconds() const {
        return std::chrono::duration<double>(Clock::now() - start_).count();
    }
    void restart() {
        start_ = Clock::now();
    }

   private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point start_ = Clock::now();
};

} // namespace faiss_flashgmm
