#pragma once

// Checks of what is given to an IVF index, whatever its codec. Each throws
// faiss::FaissException, naming the first value that is wrong.

#include <cstddef>

#include <faiss/IndexIVF.h>
#include <faiss/impl/AuxIndexStructures.h>

#include <faiss_flashgmm/compat.h>

namespace faiss_flashgmm {

/// The index has its parts, and a metric that is offered.
void check_complete(const faiss::IndexIVF& ivf);

/// It is trained, too.
void check_usable(const faiss::IndexIVF& ivf);

void check_finite(idx_t n, size_t d, const float* x);

/// No id is -1.
void check_ids(idx_t n, const idx_t* ids);

/// Each id is in the direct map, and is given once.
void check_known_once(const faiss::DirectMap& map, idx_t n, const idx_t* ids);

/// No list is beyond the last.
///
/// @param lists    size n * width: those of each `what`
void check_lists(
        const faiss::IndexIVF& ivf,
        size_t n,
        size_t width,
        const idx_t* lists,
        const char* what);

void check_search(const faiss::IndexIVF& ivf, idx_t n, bool has_copies);

/// Lists probed for a query: nprobe, which only FastScan takes beyond nlist.
idx_t probes_a_query(
        const faiss::IndexIVF& ivf,
        const faiss::IVFSearchParameters* params);

/// @param keys     null: the index assigns the queries itself
void check_preassigned(
        const faiss::IndexIVF& ivf,
        idx_t n,
        const idx_t* keys,
        bool store_pairs,
        const faiss::IVFSearchParameters* params);

void check_range_search(
        const faiss::IndexIVF& ivf,
        idx_t n,
        const faiss::RangeSearchResult* result);

/// Entries of `from` can be copied to `to`.
void check_copy(const faiss::IndexIVF& from, const faiss::IndexIVF& to);

} // namespace faiss_flashgmm
