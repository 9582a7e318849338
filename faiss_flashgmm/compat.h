#pragma once

// Every difference between FAISS 1.7.3 and 1.15 that this project meets.

#include <cstddef>
#include <cstdint>

#include <faiss/Index.h>
#include <faiss/invlists/InvertedLists.h>

#if FAISS_VERSION_MAJOR < 1 ||                                   \
        (FAISS_VERSION_MAJOR == 1 && FAISS_VERSION_MINOR < 7) || \
        (FAISS_VERSION_MAJOR == 1 && FAISS_VERSION_MINOR == 7 && \
         FAISS_VERSION_PATCH < 3)
#error "faiss_flashgmm needs FAISS 1.7.3 or newer"
#endif

/// FAISS_FLASHGMM_AT_LEAST(1, 8, 0) is true from FAISS 1.8.0 on.
#define FAISS_FLASHGMM_AT_LEAST(major, minor, patch)           \
    (FAISS_VERSION_MAJOR * 10000 + FAISS_VERSION_MINOR * 100 + \
             FAISS_VERSION_PATCH >=                            \
     (major)*10000 + (minor)*100 + (patch))

namespace faiss {
/// faiss::idx_t exists since 1.7.4; before, only Index::idx_t. The repeated
/// alias is legal where both exist.
using idx_t = int64_t;
} // namespace faiss

/// IndexIVF::range_search_preassigned is virtual, and copy_subset_to takes an
/// enumeration, since 1.7.4.
#if FAISS_FLASHGMM_AT_LEAST(1, 7, 4)
#define FAISS_FLASHGMM_OVERRIDE_SINCE_1_7_4 override
#else
#define FAISS_FLASHGMM_OVERRIDE_SINCE_1_7_4
#endif

/// Last parameter of IndexIVF::add_core, and of InvertedLists::add_entry,
/// since 1.8.
#if FAISS_FLASHGMM_AT_LEAST(1, 8, 0)
#define FAISS_FLASHGMM_LISTS_CONTEXT(context) , context
#else
#define FAISS_FLASHGMM_LISTS_CONTEXT(context)
#endif

/// Index::add_sa_codes is virtual since 1.10.
#if FAISS_FLASHGMM_AT_LEAST(1, 10, 0)
#define FAISS_FLASHGMM_OVERRIDE_SINCE_1_10 override
#else
#define FAISS_FLASHGMM_OVERRIDE_SINCE_1_10
#endif

/// Index::search1 exists since 1.14.
#define FAISS_FLASHGMM_HAS_SEARCH1 FAISS_FLASHGMM_AT_LEAST(1, 14, 0)

namespace faiss_flashgmm {

using faiss::idx_t;

#if FAISS_FLASHGMM_AT_LEAST(1, 7, 4)
using SubsetType = faiss::InvertedLists::subset_type_t;
#else
using SubsetType = int;
#endif

} // namespace faiss_flashgmm
