// Loaded by run_python.py into a process with FAISS's Python module, whose
// symbols it uses.

#include <cstdio>
#include <exception>

#include <faiss/IndexPreTransform.h>

#include "faiss_suites/swap.h"

extern "C" {

/// The index in place of the given one, which may have been deleted; null if
/// it cannot be swapped.
faiss::Index* faiss_suites_swap(faiss::Index* index) {
    try {
        return faiss_suites::swapped(index);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "not swapped: %s\n", error.what());
        return nullptr;
    }
}

/// Puts an index where Python can fetch it.
void faiss_suites_hold(faiss::IndexPreTransform* holder, faiss::Index* index) {
    holder->index = index;
}
}
