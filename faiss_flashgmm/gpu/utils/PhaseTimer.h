#pragma once

#include <memory>
#include <vector>

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
        auto span = std::make_unique<Span>(phase);
        span->begin.record(stream);
        work();
        span->end.record(stream);
        spans_.push_back(std::move(span));
    }
    void clear() {
        times = {};
        spans_.clear();
    }
    /// After the streams are done.
    void collect() {
        for (const auto& span : spans_) {
            times.*(span->phase) += milliseconds(span->begin, span->end);
        }
        spans_.clear();
    }

    Times times;

   private:
    struct Span {
        explicit Span(double Times::*phase) : phase(phase) {}
        double Times::*phase;
        Event begin{Event::Timing::on};
        Event end{Event::Timing::on};
    };
    bool on_;
    std::vector<std::unique_ptr<Span>> spans_;
};

} // namespace faiss_flashgmm::gpu
