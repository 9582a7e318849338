#include <faiss_flashgmm/IndexIVFMultiAssign.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include <faiss/impl/AuxIndexStructures.h>
#include <faiss/impl/FaissAssert.h>
#include <faiss/impl/IDSelector.h>

#include <faiss_flashgmm/ivf_checks.h>
#include <faiss_flashgmm/ivf_training.h>
#include <faiss_flashgmm/list_codes.h>
#include <faiss_flashgmm/list_entries.h>
#include <faiss_flashgmm/unique_results.h>
#include <faiss_flashgmm/unique_scan.h>

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
    if constexpr (
            std::is_base_of_v<faiss::IndexIVFPQ, Base> ||
            std::is_base_of_v<faiss::IndexIVFPQFastScan, Base>) {
        // These versions copy an empty table by a memcpy from null, which is
        // undefined.
        if (stock.precomputed_table.size() == 0) {
            stock.precomputed_table.tab.resize(1);
        }
    }
#endif
    return stock;
}

#if FAISS_FLASHGMM_HAS_RABITQ_FAST_SCAN
template <class Base>
constexpr bool kRaBitQFastScan =
        std::is_base_of_v<faiss::IndexIVFRaBitQFastScan, Base>;
#else
template <class Base>
constexpr bool kRaBitQFastScan = false;
#endif

/// FastScan indexes hold a pointer to their own codec, which copying or
/// reading one leaves wrong.
template <class Base>
void point_to_own_codec([[maybe_unused]] Base& index) {
#if FAISS_FLASHGMM_HAS_FINE_QUANTIZER
    if constexpr (std::is_base_of_v<faiss::IndexIVFPQFastScan, Base>) {
        index.fine_quantizer = &index.pq;
    }
#endif
#if FAISS_FLASHGMM_HAS_RABITQ_FAST_SCAN
    if constexpr (std::is_base_of_v<faiss::IndexIVFRaBitQFastScan, Base>) {
        index.fine_quantizer = &index.rabitq;
    }
#endif
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
    point_to_own_codec<Base>(*this);
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
        if (!has_centroids && this->quantizer_trains_alone != 1 &&
            !kmeans_centroids) {
            clustering.train(n, x, quantizer);
        }
        Base::train(n, x); // finds the centroids, trains the codec
        if (!keeps_mixture && clustering.mixture.k == 0 &&
            assigner.needs_mixture()) {
            fit_around_centroids(*this, clustering, n, x);
        }
        learn_assignment(
                quantizer, keeps_mixture ? mixture_ : clustering.mixture, n, x);
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
                !kRaBitQFastScan<Base> || n == 0 ||
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

/*************************************************************************
 * Searching
 *************************************************************************/

namespace {

/// The parameters of a FastScan search with nprobe at most nlist, which FAISS
/// clamps for other codecs only.
template <class Base>
class AtMostAllLists {
   public:
    AtMostAllLists(const Base& ivf, const faiss::SearchParameters* given)
            : given_(given) {
        const auto* params =
                dynamic_cast<const faiss::IVFSearchParameters*>(given);
        if ((given && !params) ||
            (params ? params->nprobe : ivf.nprobe) <= ivf.nlist) {
            return;
        }
#if FAISS_FLASHGMM_HAS_RABITQ
        if (auto* rabitq =
                    dynamic_cast<const faiss::IVFRaBitQSearchParameters*>(
                            params)) {
            clamped_ =
                    std::make_unique<faiss::IVFRaBitQSearchParameters>(*rabitq);
        }
#endif
        if (!clamped_) {
            clamped_ = params
                    ? std::make_unique<faiss::IVFSearchParameters>(*params)
                    : std::make_unique<faiss::IVFSearchParameters>();
        }
        clamped_->nprobe = ivf.nlist;
    }

    const faiss::SearchParameters* parameters() const {
        return clamped_ ? clamped_.get() : given_;
    }

   private:
    const faiss::SearchParameters* given_;
    std::unique_ptr<faiss::IVFSearchParameters> clamped_;
};

/// Entries that hold k different ids for most queries, if the vectors near them
/// have as many copies as others: the mean and 3 standard deviations.
idx_t likely_entries(idx_t k, double copies_a_vector) {
    const double mean = double(k) * copies_a_vector;
    return k + idx_t(std::ceil(mean + 3 * std::sqrt(mean)));
}

} // namespace

/// @param fetch     (i0, count, k, distances, labels): the k best entries of
///                  `count` queries from i0 on
template <class Base>
template <class Fetch>
void IndexIVFMultiAssign<Base>::search_unique(
        idx_t n,
        idx_t k,
        float* distances,
        idx_t* labels,
        bool store_pairs,
        const Fetch& fetch) const {
    if (n_copies_ == 0) {
        fetch(0, n, k, distances, labels);
        return;
    }
    // The k-th best different id is among `enough` entries, and most often
    // among far fewer. With FastScan these are cheaper; elsewhere searching
    // again would show in the statistics.
    const idx_t n_entries = this->ntotal + n_copies_;
    const idx_t enough = k >= n_entries
            ? n_entries
            : std::min(n_entries, max_copies_ * (k - 1) + 1);
    const double copies_a_vector = double(n_copies_) / double(this->ntotal);
    const idx_t tried = kFastScan
            ? std::min(enough, likely_entries(k, copies_a_vector))
            : enough;
    const idx_t block = std::clamp<idx_t>(
            kFetchedBytes / (sizeof(float) + sizeof(idx_t)) / tried,
            1,
            std::max<idx_t>(n, 1));
    const float no_result = this->metric_type == faiss::METRIC_INNER_PRODUCT
            ? std::numeric_limits<float>::lowest()
            : std::numeric_limits<float>::max();

    std::vector<float> fetched_distances(std::max(block * tried, enough));
    std::vector<idx_t> fetched_labels(fetched_distances.size());
    SeenIds seen;
    const auto keep_unique = [&](idx_t query, idx_t from, idx_t fetched) {
        return unique_topk(
                fetched,
                fetched_distances.data() + from,
                fetched_labels.data() + from,
                IdOfLabel{*this, store_pairs},
                no_result,
                k,
                distances + query * k,
                labels + query * k,
                seen);
    };
    std::vector<idx_t> again;
    for (idx_t i0 = 0; i0 < n; i0 += block) {
        const idx_t count = std::min(block, n - i0);
        fetch(i0,
              count,
              tried,
              fetched_distances.data(),
              fetched_labels.data());
        again.clear();
        for (idx_t i = 0; i < count; i++) {
            const size_t found = keep_unique(i0 + i, i * tried, tried);
            const bool were_all = fetched_labels[(i + 1) * tried - 1] == -1;
            if (found < size_t(k) && !were_all && tried < enough) {
                again.push_back(i0 + i);
            }
        }
        for (idx_t query : again) {
            fetch(query,
                  1,
                  enough,
                  fetched_distances.data(),
                  fetched_labels.data());
            keep_unique(query, 0, enough);
        }
    }
}

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
        search_unique(
                n,
                k,
                distances,
                labels,
                false,
                [&](idx_t i0, idx_t count, idx_t fetch, float* d, idx_t* l) {
                    Base::search(count, x + i0 * this->d, fetch, d, l);
                });
    } else if constexpr (kFastScan) {
        const AtMostAllLists<Base> clamped(*this, params);
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
#if FAISS_FLASHGMM_HAS_SEARCH1
    if (!kFastScan && n_copies_ > 0 &&
        can_scan_unique(*this, store_pairs, params)) {
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
    const idx_t nprobe = probes_a_query(*this, params);
    search_unique(
            n,
            k,
            distances,
            labels,
            store_pairs,
            [&](idx_t i0, idx_t count, idx_t fetch, float* d, idx_t* l) {
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
                        stats);
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
            !kRaBitQFastScan<Base>, "RaBitQ FastScan has no range search");
    if constexpr (kFastScan && FAISS_FLASHGMM_FAST_SCAN_TAKES_PARAMETERS) {
        const AtMostAllLists<Base> clamped(*this, params);
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
void IndexIVFMultiAssign<Base>::reconstruct_from_offset(
        int64_t list_no,
        int64_t offset,
        float* recons) const {
    // FAISS takes codes from the wrong place of blocks with more than 32 codes
    // and of those of RaBitQ.
    if constexpr (kRaBitQFastScan<Base>) {
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

#define FAISS_FLASHGMM_DEFINE(type) \
    template struct IndexIVFMultiAssign<faiss::type>;
FAISS_FLASHGMM_FOR_EACH_CODEC(FAISS_FLASHGMM_DEFINE)
#undef FAISS_FLASHGMM_DEFINE

} // namespace faiss_flashgmm
