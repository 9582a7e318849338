#include <faiss_flashgmm/tools/Console.h>

#include <csignal>
#include <cstdio>
#include <utility>

#include <unistd.h>

#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

namespace {

volatile std::sig_atomic_t interrupted = 0;

void on_interrupt(int signal) {
    interrupted = 1;
    std::signal(signal, SIG_DFL);
}

} // namespace

void catch_interrupts() {
    std::signal(SIGINT, on_interrupt);
    std::signal(SIGTERM, on_interrupt);
}

bool was_interrupted() {
    return interrupted;
}

void poll_interrupt() {
    if (was_interrupted()) {
        throw Interrupted("interrupted");
    }
}

ProgressLine::ProgressLine(std::string what, std::string unit, int64_t total)
        : what_(std::move(what)),
          unit_(std::move(unit)),
          total_(total),
          is_terminal_(isatty(STDERR_FILENO)) {}

ProgressLine::~ProgressLine() {
    if (shown_) {
        std::fprintf(stderr, "\r\33[K");
    }
}

bool ProgressLine::is_due() {
    poll_interrupt();
    constexpr double kSilent = 2;
    constexpr double kBetween = 0.1;
    if (!is_terminal_ || since_start_.seconds() < kSilent ||
        since_last_.seconds() < kBetween) {
        return false;
    }
    since_last_.restart();
    return true;
}

void ProgressLine::show(const std::string& text) {
    std::fprintf(stderr, "\r\33[K%s: %s", what_.c_str(), text.c_str());
    std::fflush(stderr);
    shown_ = true;
}

void ProgressLine::update(int64_t done) {
    if (!is_due() || done <= 0) {
        return;
    }
    const double rate = double(done) / since_start_.seconds();
    show(
            format("%s of %s %s, %s/s, %s left",
                   short_number(double(done)).c_str(),
                   short_number(double(total_)).c_str(),
                   unit_.c_str(),
                   short_number(rate).c_str(),
                   duration(double(total_ - done) / rate).c_str()));
}

void ProgressLine::update(const Progress& progress) {
    if (!is_due()) {
        return;
    }
    std::string text;
    switch (progress.stage) {
        case Progress::Stage::check_rows:
            text =
                    format("checked %s of %s rows",
                           short_number(double(progress.rows_done)).c_str(),
                           short_number(double(progress.rows_total)).c_str());
            break;
        case Progress::Stage::initialize:
            text = "first means";
            break;
        case Progress::Stage::em:
            text =
                    format("iteration %d of %d",
                           progress.iteration + 1,
                           progress.niter);
            if (progress.iteration > 0) {
                text += format(
                        ", log-likelihood %.4f", progress.log_likelihood);
            }
    }
    if (progress.nredo > 1) {
        text += format(", run %d of %d", progress.redo + 1, progress.nredo);
    }
    if (progress.eta_seconds >= 0) {
        text += ", " + duration(progress.eta_seconds) + " left";
    }
    show(text);
}

std::string short_number(double value) {
    const char* const units[] = {"", " k", " M", " G", " T"};
    size_t unit = 0;
    while (value >= 999.5 && unit + 1 < std::size(units)) {
        value /= 1000;
        unit++;
    }
    const int decimals = unit == 0 ? 0
            : value < 9.995        ? 2
            : value < 99.95        ? 1
                                   : 0;
    return format("%.*f%s", decimals, value, units[unit]);
}

std::string duration(double seconds) {
    if (seconds < 60) {
        return format("%.0f s", seconds);
    }
    const auto whole = int64_t(seconds);
    if (whole < 3600) {
        return format("%d min %d s", int(whole / 60), int(whole % 60));
    }
    return format(
            "%lld h %d min",
            static_cast<long long>(whole / 3600),
            int(whole / 60 % 60));
}

} // namespace faiss_flashgmm
