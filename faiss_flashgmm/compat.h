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

/// Whether an IndexShards or IndexReplicas owns its members: renamed in 1.7.4.
#if FAISS_FLASHGMM_AT_LEAST(1, 7, 4)
#define FAISS_FLASHGMM_OWN_MEMBERS own_indices
#else
#define FAISS_FLASHGMM_OWN_MEMBERS own_fields
#endif

/// The selector that IndexIDMap removes with is in a header since 1.8.
#define FAISS_FLASHGMM_KNOWS_SELECTOR_OF_ID_MAP FAISS_FLASHGMM_AT_LEAST(1, 8, 0)

/// Searches of FastScan indexes take parameters and given lists since 1.8.
#define FAISS_FLASHGMM_FAST_SCAN_TAKES_PARAMETERS \
    FAISS_FLASHGMM_AT_LEAST(1, 8, 0)

/// IndexIVFFastScan::fine_quantizer points into the index itself, since 1.10.
#define FAISS_FLASHGMM_HAS_FINE_QUANTIZER FAISS_FLASHGMM_AT_LEAST(1, 10, 0)

/// Index::search1 exists since 1.14.
#define FAISS_FLASHGMM_HAS_SEARCH1 FAISS_FLASHGMM_AT_LEAST(1, 14, 0)

/// IndexIVFFastScan has its scanner from a virtual function since 1.15.
#define FAISS_FLASHGMM_HAS_FAST_SCAN_SCANNER FAISS_FLASHGMM_AT_LEAST(1, 15, 0)

/// faiss::SuperKMeans exists since 1.15.
#define FAISS_FLASHGMM_HAS_SUPER_KMEANS FAISS_FLASHGMM_AT_LEAST(1, 15, 0)

/// RaBitQ exists since 1.11, its FastScan since 1.13. FAISS 1.14.2 to 1.15 do
/// not install a header that the latter includes.
#if FAISS_FLASHGMM_AT_LEAST(1, 11, 0) && __has_include(<faiss/IndexIVFRaBitQ.h>)
#define FAISS_FLASHGMM_HAS_RABITQ 1
#else
#define FAISS_FLASHGMM_HAS_RABITQ 0
#endif
#if FAISS_FLASHGMM_HAS_RABITQ && __has_include(<faiss/IndexIVFRaBitQFastScan.h>) && \
        (!FAISS_FLASHGMM_AT_LEAST(1, 14, 2) || \
         __has_include(<faiss/utils/popcount.h>))
#define FAISS_FLASHGMM_HAS_RABITQ_FAST_SCAN 1
#else
#define FAISS_FLASHGMM_HAS_RABITQ_FAST_SCAN 0
#endif

namespace faiss_flashgmm {

using faiss::idx_t;

#if FAISS_FLASHGMM_AT_LEAST(1, 7, 4)
using SubsetType = faiss::InvertedLists::subset_type_t;
#else
using SubsetType = int;
#endif

} // namespace faiss_flashgmm
