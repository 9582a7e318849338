#pragma once

#include <cstdint>
#include <new>
#include <stdexcept>
#include <vector>

#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

/// Bytes of memory that the system could still hand out.
uint64_t available_memory();

/// v.resize(n), with a failed allocation reported as OutOfMemory.
template <class T>
void resize_or_throw(std::vector<T>& v, uint64_t n, const char* what) {
    try {
        v.resize(n);
    } catch (const std::bad_alloc&) {
        throw OutOfMemory(what, n * sizeof(T), available_memory());
    } catch (const std::length_error&) {
        throw OutOfMemory(what, n * sizeof(T), available_memory());
    }
}

} // namespace faiss_flashgmm
