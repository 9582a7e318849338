#pragma once

#include <string>

#include <faiss/impl/FaissException.h>

namespace faiss_flashgmm {

/// A message without what FAISS puts before it:
/// "Error in f() at file.cpp:12: Error: 'n > 0' failed: ".
inline std::string plain_message(std::string message) {
    if (message.starts_with("Error in ")) {
        for (size_t i = message.find(": "); i != std::string::npos;
             i = message.find(": ", i + 1)) {
            if (message[i - 1] >= '0' && message[i - 1] <= '9') {
                message = message.substr(i + 2);
                break;
            }
        }
    }
    const std::string condition_end = "' failed: ";
    const size_t end = message.find(condition_end);
    return message.starts_with("Error: '") && end != std::string::npos
            ? message.substr(end + condition_end.size())
            : message;
}

/// That of an exception, to be quoted in another.
inline std::string plain_message(const faiss::FaissException& error) {
    return plain_message(error.msg);
}

} // namespace faiss_flashgmm
