#pragma once

// How IndexIVFMultiAssign searches, returning each id once.

#include <faiss_flashgmm/IndexIVFMultiAssign.h>

#include <algorithm>
#include <type_traits>

#include <faiss/impl/AuxIndexStructures.h>
#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/AtMostAllLists.h>
#include <faiss_flashgmm/ivf_checks.h>
#include <faiss_flashgmm/list_entries.h>
#include <faiss_flashgmm/unique_fetch.h>
#include <faiss_flashgmm/unique_results.h>
#include <faiss_flashgmm/unique_scan.h>

namespace faiss_flashgmm {

template <class Base>
void IndexIVFMultiAssign<Base>::search(
        idx_t n,
        const float* x,
        idx_t k,
        float* distances,
        idx_t* labels,
        const faiss::SearchParameters* params) const {
    check_search(*this, n, n_copies_ > 0);
    if constexpr (kFastScan && !FAISS_FLASHGMM_FAST_SCAN_TAKES_PARAMETERS) {
        FAISS_THROW_IF_NOT_MSG(
                !params,
                "FastScan has no search parameters before FAISS 1.8: set those "
                "of the index");
        FAISS_THROW_IF_NOT_FMT(
                this->nprobe > 0 && this->nprobe <= this->nlist,
                "nprobe is %zu, FastScan before FAISS 1.8 takes 1 to %zu",
                this->nprobe,
                this->nlist);
        FAISS_THROW_IF_NOT_FMT(k > 0, "k is %ld", long(k));
        if (n_copies_ == 0) {
            Base::search(n, x, k, distances, labels);
            return;
        }
        fetch_unique(
                *this,
                counts(),
                false,
                n,
                k,
                distances,
                labels,
                [&](idx_t i0,
                    idx_t count,
                    idx_t fetch,
                    float* d,
                    idx_t* l,
                    bool) {
                    Base::search(count, x + i0 * this->d, fetch, d, l);
                });
    } else if constexpr (kFastScan) {
        const AtMostAllLists clamped(*this, params);
        Base::search(n, x, k, distances, labels, clamped.parameters());
    } else {
        Base::search(n, x, k, distances, labels, params);
    }
}

template <class Base>
void IndexIVFMultiAssign<Base>::search_and_reconstruct(
        idx_t n,
        const float* x,
        idx_t k,
        float* distances,
        idx_t* labels,
        float* recons,
        const faiss::SearchParameters* params) const {
    check_search(*this, n, n_copies_ > 0);
    FAISS_THROW_IF_NOT_FMT(k > 0, "k is %ld", long(k));
    Base::search_and_reconstruct(n, x, k, distances, labels, recons, params);
}

template <class Base>
void IndexIVFMultiAssign<Base>::search_preassigned(
        idx_t n,
        const float* x,
        idx_t k,
        const idx_t* assign,
        const float* centroid_dis,
        float* distances,
        idx_t* labels,
        bool store_pairs,
        const faiss::IVFSearchParameters* params,
        faiss::IndexIVFStats* stats) const {
    check_search(*this, n, n_copies_ > 0);
    check_preassigned(*this, n, assign, store_pairs, params);
    FAISS_THROW_IF_NOT_FMT(k > 0, "k is %ld", long(k));
    FAISS_THROW_IF_NOT_MSG(
            !kFastScan || FAISS_FLASHGMM_FAST_SCAN_TAKES_PARAMETERS,
            "FastScan takes no given lists before FAISS 1.8");
    FAISS_THROW_IF_NOT_MSG(
            assign ? bool(centroid_dis) : kFastScan,
            "the lists of the queries or the distances to them are missing");
    if (n_copies_ == 0) {
        Base::search_preassigned(
                n,
                x,
                k,
                assign,
                centroid_dis,
                distances,
                labels,
                store_pairs,
                params,
                stats);
        return;
    }
    const idx_t nprobe = probes_a_query(*this, params);
#if FAISS_FLASHGMM_HAS_FAST_SCAN_SCANNER
    if constexpr (std::is_base_of_v<UniqueIVFPQFastScan, Parent>) {
        if (this->drops_repeats(k, params)) {
            const idx_t block = this->queries_at_once(k);
            for (idx_t i = 0; i < n; i += block) {
                Base::search_preassigned(
                        std::min(block, n - i),
                        x + i * this->d,
                        k,
                        assign ? assign + i * nprobe : nullptr,
                        assign ? centroid_dis + i * nprobe : nullptr,
                        distances + i * k,
                        labels + i * k,
                        store_pairs,
                        params,
                        stats);
            }
            return;
        }
    }
#endif
#if FAISS_FLASHGMM_HAS_SEARCH1
    if (!kFastScan && can_scan_unique(*this, store_pairs, params)) {
        scan_unique(
                *this,
                n,
                x,
                k,
                assign,
                centroid_dis,
                distances,
                labels,
                params,
                stats);
        return;
    }
#endif
    faiss::IndexIVFStats not_counted; // a query counts once
    fetch_unique(
            *this,
            counts(),
            store_pairs,
            n,
            k,
            distances,
            labels,
            [&](idx_t i0,
                idx_t count,
                idx_t fetch,
                float* d,
                idx_t* l,
                bool again) {
                Base::search_preassigned(
                        count,
                        x + i0 * this->d,
                        fetch,
                        assign ? assign + i0 * nprobe : nullptr,
                        assign ? centroid_dis + i0 * nprobe : nullptr,
                        d,
                        l,
                        store_pairs,
                        params,
                        again && !kFastScan ? &not_counted : stats);
            });
}

template <class Base>
void IndexIVFMultiAssign<Base>::make_unique(
        faiss::RangeSearchResult& result,
        bool store_pairs) const {
    if (n_copies_ > 0) {
        unique_range(
                result,
                IdOfLabel{*this, store_pairs},
                this->metric_type == faiss::METRIC_INNER_PRODUCT);
    }
}

template <class Base>
void IndexIVFMultiAssign<Base>::range_search(
        idx_t n,
        const float* x,
        float radius,
        faiss::RangeSearchResult* result,
        const faiss::SearchParameters* params) const {
    check_range_search(*this, n, result);
    FAISS_THROW_IF_NOT_MSG(
            !kRaBitQFastScan, "RaBitQ FastScan has no range search");
    if constexpr (kFastScan && FAISS_FLASHGMM_FAST_SCAN_TAKES_PARAMETERS) {
        const AtMostAllLists clamped(*this, params);
        Base::range_search(n, x, radius, result, clamped.parameters());
    } else {
        Base::range_search(n, x, radius, result, params);
    }
    make_unique(*result, false);
}

template <class Base>
void IndexIVFMultiAssign<Base>::range_search_preassigned(
        idx_t nx,
        const float* x,
        float radius,
        const idx_t* keys,
        const float* coarse_dis,
        faiss::RangeSearchResult* result,
        bool store_pairs,
        const faiss::IVFSearchParameters* params,
        faiss::IndexIVFStats* stats) const {
    check_range_search(*this, nx, result);
    FAISS_THROW_IF_NOT_MSG(
            !kFastScan, "FastScan has no range search over given lists");
    check_preassigned(*this, nx, keys, store_pairs, params);
    Base::range_search_preassigned(
            nx,
            x,
            radius,
            keys,
            coarse_dis,
            result,
            store_pairs,
            params,
            stats);
    make_unique(*result, store_pairs);
}

#if FAISS_FLASHGMM_HAS_SEARCH1
template <class Base>
void IndexIVFMultiAssign<Base>::search1(
        const float* x,
        faiss::ResultHandler& handler,
        faiss::SearchParameters* params) const {
    check_usable(*this);
    FAISS_THROW_IF_NOT_MSG(!kFastScan, "search1 is not offered with FastScan");
    if (n_copies_ == 0) {
        Base::search1(x, handler, params);
        return;
    }
    UniqueHandler unique(
            handler,
            this->by_residual,
            this->metric_type == faiss::METRIC_INNER_PRODUCT);
    Base::search1(x, unique, params);
    unique.finish();
}
#endif

} // namespace faiss_flashgmm
