#pragma once

// Every difference between FAISS 1.7.3 and 1.15 that this project meets.

#include <faiss/Index.h>

#if FAISS_VERSION_MAJOR < 1 ||                                  \
        (FAISS_VERSION_MAJOR == 1 && FAISS_VERSION_MINOR < 7) || \
        (FAISS_VERSION_MAJOR == 1 && FAISS_VERSION_MINOR == 7 && \
         FAISS_VERSION_PATCH < 3)
#error "faiss_flashgmm needs FAISS 1.7.3 or newer"
#endif

/// FAISS_FLASHGMM_AT_LEAST(1, 8, 0) is true from FAISS 1.8.0 on.
#define FAISS_FLASHGMM_AT_LEAST(major, minor, patch)            \
    (FAISS_VERSION_MAJOR * 10000 + FAISS_VERSION_MINOR * 100 + \
             FAISS_VERSION_PATCH >=                             \
     (major)*10000 + (minor)*100 + (patch))

namespace faiss {
/// faiss::idx_t exists since 1.7.4; before, only Index::idx_t. The repeated
/// alias is legal where both exist.
using idx_t = int64_t;
} // namespace faiss

namespace faiss_flashgmm {
using faiss::idx_t;
} // namespace faiss_flashgmm
