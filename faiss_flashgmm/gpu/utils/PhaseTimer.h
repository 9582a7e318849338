#pragma once

#include <cstddef>
#include <deque>

#include <faiss_flashgmm/gpu/utils/Device.h>

namespace faiss_flashgmm::gpu {

/// Device times of phases, by events; nothing waits until the end. Times has a
/// double, in milliseconds, for each phase.
template <class Times>
class PhaseTimer {
   public:
    explicit PhaseTimer(bool on) : on_(on) {}

    template <class Work>
    void time(double Times::*phase, cudaStream_t stream, Work&& work) {
        if (!on_) {
            work();
            return;
        }
        if (used_ == spans_.size()) {
            spans_.emplace_back();
        }
        Span& span = spans_[used_++];
        span.phase = phase;
        span.begin.record(stream);
        work();
        span.end.record(stream);
    }
    /// Forgets what was timed since collect().
    void clear() {
        used_ = 0;
    }
    /// After the streams are done.
    void collect() {
        times_ = {};
        for (size_t i = 0; i < used_; ++i) {
            const Span& span = spans_[i];
            times_.*(span.phase) += milliseconds(span.begin, span.end);
        }
        used_ = 0;
    }
    /// What the last collect() found.
    const Times& times() const {
        return times_;
    }

   private:
    struct Span {
        double Times::*phase = nullptr;
        Event begin{Event::Timing::on};
        Event end{Event::Timing::on};
    };
    bool on_;
    std::deque<Span> spans_;
    size_t used_ = 0;
    Times times_;
};

} // namespace faiss_flashgmm::gpu
