#include <faiss_flashgmm/utils/Error.h>

#include <cstdarg>
#include <cstdio>

namespace faiss_flashgmm {

OutOfMemory::OutOfMemory(
        const std::string& what,
        uint64_t asked,
        uint64_t available)
        : Error(format(
                  "out of memory: %s needs %llu bytes, %llu bytes are free",
                  what.c_str(),
                  static_cast<unsigned long long>(asked),
                  static_cast<unsigned long long>(available))),
          asked_bytes(asked),
          available_bytes(available) {}

std::string format(const char* fmt, ...) {
    va_list args;
    va_start(args, fmt);
    va_list counting;
    va_copy(counting, args);
    const int size = std::vsnprintf(nullptr, 0, fmt, counting);
    va_end(counting);
    std::string text(size > 0 ? size : 0, '\0');
    std::vsnprintf(text.data(), text.size() + 1, fmt, args);
    va_end(args);
    return text;
}

} // namespace faiss_flashgmm
