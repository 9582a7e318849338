#pragma once

#include <cstdint>
#include <string>

#include <faiss_flashgmm/em/EMOptions.h>
#include <faiss_flashgmm/utils/Timer.h>

namespace faiss_flashgmm {

/// From here on, an interrupt (Ctrl-C) makes poll_interrupt() throw; a second
/// one ends the program.
void catch_interrupts();

bool was_interrupted();

/// Throws Interrupted after an interrupt.
void poll_interrupt();

/** One line on stderr that says how far a piece of work is, with its rate and
 * the time left. Silent unless stderr is a terminal and the work takes more
 * than two seconds. Polls interrupts.
 */
class ProgressLine {
   public:
    /// @param unit     what is counted, such as "rows"
    ProgressLine(std::string what, std::string unit, int64_t total);
    ~ProgressLine();

    void update(int64_t done);

    /// Instead of update(), for a fit.
    void update(const Progress& progress);

   private:
    bool is_due();
    void show(const std::string& text);

    std::string what_;
    std::string unit_;
    int64_t total_;
    bool is_terminal_;
    bool shown_ = false;
    Timer since_start_;
    Timer since_last_;
};

/// 12345678 -> "12.3 M", three digits and a unit.
std::string short_number(double value);

/// 75 -> "1 min 15 s"
std::string duration(double seconds);

} // namespace faiss_flashgmm
