#pragma once

// How IndexIVFMultiAssign reads, removes, merges and copies what it stores.

#include <faiss_flashgmm/IndexIVFMultiAssign.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include <faiss/IndexIDMap.h>
#include <faiss/impl/FaissAssert.h>
#include <faiss/impl/IDSelector.h>

#include <faiss_flashgmm/ivf_checks.h>
#include <faiss_flashgmm/list_codes.h>
#include <faiss_flashgmm/list_entries.h>

namespace faiss_flashgmm {

template <class Base>
void IndexIVFMultiAssign<Base>::reconstruct(idx_t key, float* recons) const {
    FAISS_THROW_IF_NOT_MSG(
            !this->direct_map.no(),
            "reconstruct needs a direct map: call make_direct_map() for ids "
            "0, 1, 2..., set_direct_map_type(DirectMap::Hashtable) for others");
    const idx_t place = this->direct_map.get(key);
    FAISS_THROW_IF_NOT_FMT(
            place >= 0, "vector %ld is stored in no list", long(key));
    this->reconstruct_from_offset(
            faiss::lo_listno(place), faiss::lo_offset(place), recons);
}

template <class Base>
void IndexIVFMultiAssign<Base>::reconstruct_from_offset(
        int64_t list_no,
        int64_t offset,
        float* recons) const {
    // FAISS takes codes from the wrong place of blocks with more than 32 codes
    // and of those of RaBitQ.
    if constexpr (kRaBitQFastScan) {
        std::vector<uint8_t> code(this->sa_code_size());
        this->encode_listno(list_no, code.data());
        ListCodes(*this).read(
                list_no, offset, code.data() + this->coarse_code_size());
        Base::sa_decode(1, code.data(), recons);
    } else if constexpr (std::is_base_of_v<faiss::IndexIVFPQFastScan, Base>) {
        std::vector<uint8_t> code(this->code_size);
        ListCodes(*this).read(list_no, offset, code.data());
        this->pq.decode(code.data(), recons);
        if (this->by_residual) {
            std::vector<float> centroid(this->d);
            this->quantizer->reconstruct(list_no, centroid.data());
            for (int i = 0; i < this->d; i++) {
                recons[i] += centroid[i];
            }
        }
    } else {
        Base::reconstruct_from_offset(list_no, offset, recons);
    }
}

template <class Base>
void IndexIVFMultiAssign<Base>::set_direct_map_type(
        faiss::DirectMap::Type type) {
    if (type != this->direct_map.type) {
        faiss::DirectMap map;
        map.set_type(type, this->invlists, this->ntotal);
        std::swap(this->direct_map, map);
    }
}

template <class Base>
void IndexIVFMultiAssign<Base>::make_direct_map(bool new_maintain_direct_map) {
    set_direct_map_type(
            new_maintain_direct_map ? faiss::DirectMap::Array
                                    : faiss::DirectMap::NoMap);
}

template <class Base>
size_t IndexIVFMultiAssign<Base>::remove(const faiss::IDSelector& sel) {
    const RemovedEntries removed = remove_entries(*this, sel);
    this->ntotal -= removed.vectors;
    n_copies_ -= removed.copies;
    return removed.vectors;
}

template <class Base>
size_t IndexIVFMultiAssign<Base>::remove_ids(const faiss::IDSelector& sel) {
    FAISS_THROW_IF_NOT_MSG(
            this->direct_map.type != faiss::DirectMap::Array,
            "vectors cannot be removed with a direct map of type Array");
#if FAISS_FLASHGMM_KNOWS_SELECTOR_OF_ID_MAP
    // It would take for granted that later vectors get smaller ids.
    FAISS_THROW_IF_NOT_MSG(
            !dynamic_cast<const faiss::IDSelectorTranslated*>(&sel),
            "vectors cannot be removed through an IndexIDMap: "
            "give their ids to the IVF index itself");
#endif
    const auto* array = dynamic_cast<const faiss::IDSelectorArray*>(&sel);
    if (!array) {
        return remove(sel);
    }
    if (n_copies_ == 0 && !this->direct_map.no() && !kFastScan) {
        return Base::remove_ids(sel); // through the map
    }
    return remove(faiss::IDSelectorBatch(array->n, array->ids));
}

template <class Base>
void IndexIVFMultiAssign<Base>::update_vectors(
        int nv,
        const idx_t* idx,
        const float* v) {
    FAISS_THROW_IF_NOT_MSG(
            !this->direct_map.no(),
            "update_vectors needs a direct map: call make_direct_map() or "
            "set_direct_map_type()");
    check_can_add(nv, v, idx);
    check_known_once(this->direct_map, nv, idx);
    std::vector<idx_t> primary(nv);
    this->quantizer->assign(nv, v, primary.data());

    const idx_t ntotal = this->ntotal;
    remove(faiss::IDSelectorBatch(nv, idx));
    store(nv, v, idx, primary.data(), nullptr);
    this->ntotal = ntotal;
}

template <class Base>
void IndexIVFMultiAssign<Base>::reset() {
    Base::reset();
    n_copies_ = 0;
    max_copies_ = 1;
    max_id_ = -1;
}

template <class Base>
void IndexIVFMultiAssign<Base>::merge_from(
        faiss::Index& otherIndex,
        idx_t add_id) {
    FAISS_THROW_IF_NOT_MSG(
            &otherIndex != this, "an index cannot be merged into itself");
    Base::check_compatible_for_merge(otherIndex);
    auto& other = static_cast<IndexIVFMultiAssign&>(otherIndex); // so checked
    std::vector<idx_t> other_ids = sorted_ids(other);
    shift_ids(other_ids, add_id);
    // Where every vector is in one list, an id may stand for several, as in
    // stock FAISS.
    if (n_copies_ > 0 || other.n_copies_ > 0 || assigner.max_lists() > 1) {
        check_disjoint(sorted_ids(*this), other_ids);
    }

    if constexpr (kFastScan) {
        copy_entries(other, *this, faiss::IDSelectorAll(), add_id);
        other.invlists->reset();
        this->ntotal += std::exchange(other.ntotal, 0);
    } else {
        Base::merge_from(other, add_id);
    }
    n_copies_ += std::exchange(other.n_copies_, 0);
    max_copies_ = std::max(max_copies_, std::exchange(other.max_copies_, 1));
    if (!other_ids.empty()) {
        max_id_ = std::max(max_id_, other_ids.back());
    }
}

template <class Base>
void IndexIVFMultiAssign<Base>::copy_subset_to(
        faiss::IndexIVF& other,
        SubsetType subset_type,
        idx_t a1,
        idx_t a2) const {
    check_copy(*this, other);
    auto* multi = dynamic_cast<IVFMultiAssign*>(&other);
    const int type = int(subset_type);
    if (type != 0 && type != 1) {
        FAISS_THROW_IF_NOT_FMT(
                !kFastScan,
                "subset type %d is not offered with FastScan, whose blocks "
                "cannot be cut",
                type);
        FAISS_THROW_IF_NOT_FMT(
                n_copies_ == 0,
                "subset type %d would separate the copies of a vector",
                type);
        FAISS_THROW_IF_NOT_FMT(
                nentries() == size_t(this->ntotal),
                "subset type %d is not possible with vectors in no list",
                type);
        Base::copy_subset_to(other, subset_type, a1, a2);
        if (multi) {
            multi->recount();
        }
        return;
    }
    const SubsetIds subset(type, a1, a2);
    const std::vector<idx_t> ids = sorted_ids(*this, &subset);
    const size_t n_vectors = count_distinct(ids);
    if (multi) {
        check_disjoint(ids, sorted_ids(other));
    } else {
        FAISS_THROW_IF_NOT_MSG(
                n_vectors == ids.size(),
                "vectors in two lists need a multi-assign index to be copied "
                "to");
    }
    copy_entries(*this, other, subset);
    if (multi) {
        multi->recount();
    } else {
        other.ntotal += n_vectors;
    }
}

} // namespace faiss_flashgmm
