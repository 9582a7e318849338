#pragma once

// How IndexIVFMultiAssign stores vectors.

#include <faiss_flashgmm/IndexIVFMultiAssign.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include <faiss/impl/AuxIndexStructures.h>
#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/ivf_checks.h>
#include <faiss_flashgmm/list_entries.h>

namespace faiss_flashgmm {

/// Whether max_inflation is exact among the n vectors of an add.
template <class Base>
bool IndexIVFMultiAssign<Base>::is_bulk(idx_t n) const {
    return this->ntotal == 0 && n >= idx_t(this->nlist);
}

template <class Base>
void IndexIVFMultiAssign<Base>::check_can_add(
        idx_t n,
        const float* x,
        const idx_t* xids) const {
    check_usable(*this);
    FAISS_THROW_IF_NOT_FMT(n >= 0, "%ld vectors", long(n));
    assigner.check_learned(*this->quantizer, is_bulk(n));
    FAISS_THROW_IF_NOT_MSG(
            !assigner.needs_mixture() || mixture_.k == idx_t(this->nlist),
            "the assignment policy needs a mixture: "
            "call train() or set_mixture()");
    check_finite(n, this->d, x);
    if (xids) {
        check_ids(n, xids);
        FAISS_THROW_IF_NOT_MSG(
                !kRaBitQFastScan || n == 0 ||
                        *std::min_element(xids, xids + n) >= 0,
                "RaBitQ FastScan finds no vectors with negative ids");
    }
}

template <class Base>
void IndexIVFMultiAssign<Base>::assign_lists(
        idx_t n,
        const float* x,
        idx_t* lists) const {
    check_can_add(n, x, nullptr);
    std::vector<idx_t> primary(n);
    this->quantizer->assign(n, x, primary.data());
    complete_lists(*this->quantizer, n, x, primary.data(), is_bulk(n), lists);
}

template <class Base>
void IndexIVFMultiAssign<Base>::add_with_ids(
        idx_t n,
        const float* x,
        const idx_t* xids) {
    check_can_add(n, x, xids);
    this->direct_map.check_can_add(xids);
    std::vector<idx_t> primary(n);
    this->quantizer->assign(n, x, primary.data());
    store(n, x, xids, primary.data(), nullptr);
}

template <class Base>
void IndexIVFMultiAssign<Base>::add_core(
        idx_t n,
        const float* x,
        const idx_t* xids,
        const idx_t* precomputed_idx
                FAISS_FLASHGMM_LISTS_CONTEXT(void* inverted_list_context)) {
    check_can_add(n, x, xids);
    this->direct_map.check_can_add(xids);
    FAISS_THROW_IF_NOT_MSG(precomputed_idx, "precomputed_idx is null");
    check_lists(*this, n, 1, precomputed_idx, "vector");
#if FAISS_FLASHGMM_AT_LEAST(1, 8, 0)
    void* const context = inverted_list_context;
#else
    void* const context = nullptr;
#endif
    store(n, x, xids, precomputed_idx, context);
}

template <class Base>
void IndexIVFMultiAssign<Base>::store(
        idx_t n,
        const float* x,
        const idx_t* xids,
        const idx_t* primary,
        void* inverted_list_context) {
    std::vector<idx_t> own_ids;
    if (!xids) {
        own_ids = next_ids(*this, max_id_, n);
        xids = own_ids.data();
    }
    const int width = assigner.max_lists();
    std::vector<idx_t> lists(n * width);
    complete_lists(*this->quantizer, n, x, primary, is_bulk(n), lists.data());
    for (idx_t i0 = 0; i0 < n; i0 += kAddBlock) {
        if (i0 > 0) {
            faiss::InterruptCallback::check();
        }
        const idx_t count = std::min(kAddBlock, n - i0);
        const float* rows = x + i0 * this->d;
        const idx_t* ids = xids + i0;
        const AddedEntries added = add_entries(
                *this,
                count,
                rows,
                ids,
                lists.data() + i0 * width,
                width,
                inverted_list_context);
        max_id_ = std::max(max_id_, *std::max_element(ids, ids + count));
        this->ntotal += count;
        n_copies_ += added.copies;
        max_copies_ = std::max(max_copies_, added.max_copies);
    }
    if (this->verbose) {
        printf("IndexIVFMultiAssign: added %ld vectors, %.3f entries each\n",
               long(n),
               entries_per_vector());
    }
}

template <class Base>
void IndexIVFMultiAssign<Base>::add_sa_codes(
        idx_t n,
        const uint8_t* codes,
        const idx_t* xids) {
    check_usable(*this);
    FAISS_THROW_IF_NOT_FMT(n >= 0, "%ld codes", long(n));
    this->direct_map.check_can_add(xids);
    const size_t size = this->sa_code_size();
    const size_t list_size = size - this->code_size;
    for (idx_t i = 0; i < n; i++) {
        this->decode_listno(codes + i * size); // throws if there is none
        FAISS_THROW_IF_NOT_FMT(
                !xids || xids[i] != -1,
                "code %ld has the id -1, which means no result",
                long(i));
    }
    const std::vector<idx_t> ids = xids ? std::vector<idx_t>(xids, xids + n)
                                        : next_ids(*this, max_id_, n);
    for (idx_t i = 0; i < n; i++) {
        const uint8_t* code = codes + i * size;
        append_code(*this, this->decode_listno(code), ids[i], code + list_size);
        max_id_ = std::max(max_id_, ids[i]);
        this->ntotal++;
    }
}

} // namespace faiss_flashgmm
