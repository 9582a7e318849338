#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace faiss_flashgmm {

/// Base of every exception thrown by the FAISS-free core.
class Error : public std::runtime_error {
   public:
    using std::runtime_error::runtime_error;
};

/// A callback asked the computation to stop.
class Interrupted : public Error {
   public:
    using Error::Error;
};

/// An allocation failed; the message names the bytes asked for and those free.
class OutOfMemory : public Error {
   public:
    OutOfMemory(const std::string& what, uint64_t asked, uint64_t available);

    uint64_t asked_bytes;
    uint64_t available_bytes;
};

/// printf-style formatting into a std::string.
std::string format(const char* fmt, ...) __attribute__((format(printf, 1, 2)));

} // namespace faiss_flashgmm

#define FLASHGMM_THROW_FMT(...) \
    throw ::faiss_flashgmm::Error(::faiss_flashgmm::format(__VA_ARGS__))

/// Checks an argument; the message should name the offending value.
#define FLASHGMM_THROW_IF_NOT_FMT(condition, ...) \
    do {                                          \
        if (!(condition)) {                       \
            FLASHGMM_THROW_FMT(__VA_ARGS__);      \
        }                                         \
    } while (false)
