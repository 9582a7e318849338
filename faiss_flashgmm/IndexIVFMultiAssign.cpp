#include <faiss_flashgmm/IndexIVFMultiAssign.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include <faiss/impl/AuxIndexStructures.h>
#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/ivf_checks.h>
#include <faiss_flashgmm/ivf_training.h>
#include <faiss_flashgmm/list_entries.h>
#include <faiss_flashgmm/unique_results.h>

namespace faiss_flashgmm {

namespace {

/// Rows encoded at once by add().
constexpr idx_t kAddBlock = 16384;

/// Bytes of results fetched at once by a search.
constexpr size_t kFetchedBytes = 32 << 20;

/// Checks that `stock` can be copied to a Base.
template <class Base>
Base& copyable(Base& stock) {
    FAISS_THROW_IF_NOT_FMT(
            typeid(stock) == typeid(Base),
            "an index of type %s is not exactly a %s",
            typeid(stock).name(),
            typeid(Base).name());
#if !FAISS_FLASHGMM_AT_LEAST(1, 15, 0)
    if constexpr (std::is_base_of_v<faiss::IndexIVFPQ, Base>) {
        // These versions copy an empty table by a memcpy from null, which is
        // undefined.
        if (stock.precomputed_table.size() == 0) {
            stock.precomputed_table.tab.resize(1);
        }
    }
#endif
    return stock;
}

} // namespace

/*************************************************************************
 * Construction and counts
 *************************************************************************/

template <class Base>
IndexIVFMultiAssign<Base>::IndexIVFMultiAssign(
        Base&& stock,
        const EntryCounts* known)
        : Base(copyable(stock)) {
    // Owned by `stock` until nothing can throw any more.
    this->own_fields = this->own_invlists = false;
    if (known) {
        set_counts(*known);
    } else {
        const idx_t stock_ntotal = this->ntotal;
        recount();
        if (n_copies_ == 0) {
            this->ntotal = stock_ntotal; // counts rows in no list, too
        }
    }
    this->own_fields = std::exchange(stock.own_fields, false);
    this->own_invlists = std::exchange(stock.own_invlists, false);
}

template <class Base>
size_t IndexIVFMultiAssign<Base>::nentries() const {
    return this->invlists->compute_ntotal();
}

template <class Base>
EntryCounts IndexIVFMultiAssign<Base>::counts() const {
    return {size_t(this->ntotal), n_copies_, max_copies_, max_id_};
}

template <class Base>
void IndexIVFMultiAssign<Base>::set_counts(const EntryCounts& counts) {
    this->ntotal = counts.vectors;
    n_copies_ = counts.copies;
    max_copies_ = counts.max_copies;
    max_id_ = std::max(max_id_, counts.largest_id);
}

template <class Base>
void IndexIVFMultiAssign<Base>::recount() {
    set_counts(count_entries(*this));
}

template <class Base>
ListStatistics IndexIVFMultiAssign<Base>::list_statistics() const {
    return measure_lists(*this);
}

/*************************************************************************
 * Training
 *************************************************************************/

template <class Base>
void IndexIVFMultiAssign<Base>::set_mixture(const Mixture& mixture) {
    check_mixture(*this, mixture);
    mixture_ = mixture;
}

template <class Base>
void IndexIVFMultiAssign<Base>::train(idx_t n, const float* x) {
    check_complete(*this);
    FAISS_THROW_IF_NOT_FMT(
            this->ntotal == 0 && nentries() == 0,
            "the index holds %ld vectors: reset() it before training",
            long(this->ntotal));
    FAISS_THROW_IF_NOT_FMT(n > 0, "%ld training vectors", long(n));
    assigner.check();
    check_training_rows(*this, n, x);

    faiss::Index& quantizer = *this->quantizer;
    const bool has_centroids =
            quantizer.is_trained && quantizer.ntotal == idx_t(this->nlist);
    const bool keeps_mixture = has_centroids && mixture_.k > 0 &&
            first_foreign_mean(quantizer, mixture_) == mixture_.k;
    FlashGMMClustering clustering(this->d, this->nlist, this->cp, gmm);
    clustering.verbose |= this->verbose;

    TrainedParts before(*this, has_centroids);
    try {
        if (!has_centroids && this->quantizer_trains_alone != 1) {
            clustering.train(n, x, quantizer);
        }
        Base::train(n, x); // finds the centroids, trains the codec
        if (!keeps_mixture && clustering.mixture.k == 0 &&
            assigner.needs_mixture()) {
            fit_around_centroids(*this, clustering, n, x);
        }
    } catch (...) {
        before.restore();
        throw;
    }
    if (!keeps_mixture) {
        mixture_ = std::move(clustering.mixture);
        em_stats = std::move(clustering.em_stats);
    }
}

/*************************************************************************
 * Adding
 *************************************************************************/

template <class Base>
void IndexIVFMultiAssign<Base>::check_can_add(
        idx_t n,
        const float* x,
        const idx_t* xids) const {
    check_usable(*this);
    assigner.check();
    FAISS_THROW_IF_NOT_FMT(n >= 0, "%ld vectors", long(n));
    FAISS_THROW_IF_NOT_MSG(
            !assigner.needs_mixture() || mixture_.k == idx_t(this->nlist),
            "the assignment policy needs a mixture: "
            "call train() or set_mixture()");
    check_finite(n, this->d, x);
    if (xids) {
        check_ids(n, xids);
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
    for (idx_t i0 = 0; i0 < n; i0 += kAddBlock) {
        complete_lists(
                *this->quantizer,
                std::min(kAddBlock, n - i0),
                x + i0 * this->d,
                primary.data() + i0,
                lists + i0 * assigner.max_lists());
    }
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
    std::vector<idx_t> lists;
    for (idx_t i0 = 0; i0 < n; i0 += kAddBlock) {
        if (i0 > 0) {
            faiss::InterruptCallback::check();
        }
        const idx_t count = std::min(kAddBlock, n - i0);
        const float* rows = x + i0 * this->d;
        const idx_t* ids = xids + i0;
        lists.resize(count * width);
        complete_lists(
                *this->quantizer, count, rows, primary + i0, lists.data());
        const size_t n_copies = add_entries(
                *this,
                count,
                rows,
                ids,
                lists.data(),
                width,
                inverted_list_context);
        max_id_ = std::max(max_id_, *std::max_element(ids, ids + count));
        this->ntotal += count;
        n_copies_ += n_copies;
        if (n_copies > 0) {
            max_copies_ = std::max(max_copies_, width);
        }
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
    for (idx_t i = 0; i < n; i++) {
        this->decode_listno(codes + i * size); // throws if there is none
        FAISS_THROW_IF_NOT_FMT(
                !xids || xids[i] != -1,
                "code %ld has the id -1, which means no result",
                long(i));
    }
    std::vector<idx_t> ids = xids ? std::vector<idx_t>(xids, xids + n)
                                  : next_ids(*this, max_id_, n);
    const bool array = this->direct_map.type == faiss::DirectMap::Array;
    Base::add_sa_codes(n, codes, array ? nullptr : ids.data());
    for (idx_t id : ids) {
        max_id_ = std::max(max_id_, id);
    }
}

/*************************************************************************
 * Searching
 *************************************************************************/

template <class Base>
void IndexIVFMultiAssign<Base>::search(
        idx_t n,
        const float* x,
        idx_t k,
        float* distances,
        idx_t* labels,
        const faiss::SearchParameters* params) const {
    check_search(*this, n, n_copies_ > 0);
    Base::search(n, x, k, distances, labels, params);
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

    // The k-th best different id is among that many entries.
    const idx_t n_entries = this->ntotal + n_copies_;
    const idx_t fetch = k >= n_entries
            ? n_entries
            : std::min(n_entries, max_copies_ * (k - 1) + 1);
    const idx_t block = std::clamp<idx_t>(
            kFetchedBytes / (sizeof(float) + sizeof(idx_t)) / fetch,
            1,
            std::max<idx_t>(n, 1));
    const idx_t nprobe =
            std::min(this->nlist, params ? params->nprobe : this->nprobe);
    const float no_result = this->metric_type == faiss::METRIC_INNER_PRODUCT
            ? std::numeric_limits<float>::lowest()
            : std::numeric_limits<float>::max();

    std::vector<float> fetched_distances(block * fetch);
    std::vector<idx_t> fetched_labels(block * fetch);
    SeenIds seen;
    for (idx_t i0 = 0; i0 < n; i0 += block) {
        const idx_t count = std::min(block, n - i0);
        Base::search_preassigned(
                count,
                x + i0 * this->d,
                fetch,
                assign + i0 * nprobe,
                centroid_dis + i0 * nprobe,
                fetched_distances.data(),
                fetched_labels.data(),
                store_pairs,
                params,
                stats);
        for (idx_t i = 0; i < count; i++) {
            unique_topk(
                    fetch,
                    fetched_distances.data() + i * fetch,
                    fetched_labels.data() + i * fetch,
                    IdOfLabel{*this, store_pairs},
                    no_result,
                    k,
                    distances + (i0 + i) * k,
                    labels + (i0 + i) * k,
                    seen);
        }
    }
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
    Base::range_search(n, x, radius, result, params);
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
    FAISS_THROW_IF_NOT_MSG(
            n_copies_ == 0,
            "search1 is not possible with vectors in two lists");
    Base::search1(x, handler, params);
}
#endif

/*************************************************************************
 * Direct access, removal, merging
 *************************************************************************/

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
    const auto* array = dynamic_cast<const faiss::IDSelectorArray*>(&sel);
    if (!array) {
        return remove(sel);
    }
    if (n_copies_ == 0 && !this->direct_map.no()) {
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
    check_disjoint(sorted_ids(*this), other_ids);

    Base::merge_from(other, add_id);
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

template struct IndexIVFMultiAssign<faiss::IndexIVFFlat>;
template struct IndexIVFMultiAssign<faiss::IndexIVFPQ>;

} // namespace faiss_flashgmm
