#pragma once

#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

/// Runs the core; its errors become FaissExceptions.
template <class Function>
void with_faiss_errors(Function&& function) {
    try {
        function();
    } catch (const Error& error) {
        FAISS_THROW_MSG(error.what());
    }
}

} // namespace faiss_flashgmm
