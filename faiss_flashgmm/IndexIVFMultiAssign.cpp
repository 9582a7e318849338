#include <faiss_flashgmm/IndexIVFMultiAssign.h>

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <type_traits>
#include <typeinfo>
#include <unordered_set>
#include <utility>

#include <faiss/IndexFlat.h>
#include <faiss/IndexIDMap.h>
#include <faiss/IndexPreTransform.h>
#include <faiss/impl/AuxIndexStructures.h>
#include <faiss/impl/FaissAssert.h>
#include <faiss/impl/IDSelector.h>

#include <faiss_flashgmm/train_ivf.h>
#include <faiss_flashgmm/unique_results.h>

namespace faiss_flashgmm {

namespace {

/// Rows encoded at once by add().
constexpr idx_t kAddBlock = 16384;

/// Bytes of results fetched at once by a search.
constexpr size_t kFetchedBytes = 32 << 20;

/// An id with more entries than this is not the work of an assigner.
constexpr size_t kMostCopies = 8;

constexpr idx_t kLargestId = std::numeric_limits<idx_t>::max();

void check_finite(idx_t n, size_t d, const float* x) {
    for (size_t i = 0; i < n * d; i++) {
        FAISS_THROW_IF_NOT_FMT(
                std::isfinite(x[i]),
                "row %zu, column %zu is %g",
                i / d,
                i % d,
                x[i]);
    }
}

double imbalance_factor(const std::vector<size_t>& sizes) {
    double sum = 0, sum_squares = 0;
    for (size_t size : sizes) {
        sum += double(size);
        sum_squares += double(size) * double(size);
    }
    return sum == 0 ? 1 : double(sizes.size()) * sum_squares / (sum * sum);
}

/// Number of different values.
size_t sort_and_count(std::vector<idx_t>& ids) {
    std::sort(ids.begin(), ids.end());
    size_t distinct = 0;
    for (size_t i = 0; i < ids.size(); i++) {
        distinct += i == 0 || ids[i] != ids[i - 1];
    }
    return distinct;
}

/// Throws if two sorted lists share an id.
void check_disjoint(const std::vector<idx_t>& a, const std::vector<idx_t>& b) {
    for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
        FAISS_THROW_IF_NOT_FMT(
                a[i] != b[j], "both indexes hold the id %ld", long(a[i]));
        if (a[i] < b[j]) {
            i++;
        } else {
            j++;
        }
    }
}

size_t add_list_entry(
        faiss::InvertedLists& lists,
        size_t list,
        idx_t id,
        const uint8_t* code,
        [[maybe_unused]] void* inverted_list_context) {
    return lists.add_entry(
            list, id, code FAISS_FLASHGMM_LISTS_CONTEXT(inverted_list_context));
}

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

/// What train() changes of an index, to put it back.
template <class Base>
class TrainedParts {
   public:
    TrainedParts(Base& index, bool keeps_centroids)
            : index_(index),
              keeps_centroids_(keeps_centroids),
              quantizer_trained_(index.quantizer->is_trained) {
        if (!keeps_centroids) {
            centroids_.resize(size_t(index.quantizer->ntotal) * index.d);
            index.quantizer->reconstruct_n(
                    0, index.quantizer->ntotal, centroids_.data());
        }
        if constexpr (kHasPQ) {
            pq_ = index.pq;
        }
    }

    void restore() {
        if constexpr (kHasPQ) {
            index_.pq = pq_;
        }
        if (!keeps_centroids_) {
            faiss::Index& quantizer = *index_.quantizer;
            quantizer.reset();
            if (!centroids_.empty()) {
                quantizer.add(centroids_.size() / index_.d, centroids_.data());
            }
            quantizer.is_trained = quantizer_trained_;
        }
    }

   private:
    static constexpr bool kHasPQ = std::is_base_of_v<faiss::IndexIVFPQ, Base>;

    Base& index_;
    bool keeps_centroids_;
    bool quantizer_trained_;
    std::vector<float> centroids_;
    faiss::ProductQuantizer pq_;
};

} // namespace

double IVFMultiAssign::entries_per_vector() const {
    const size_t entries = nentries();
    return entries == n_copies_ ? 1
                                : double(entries) / double(entries - n_copies_);
}

/*************************************************************************
 * Construction and counts
 *************************************************************************/

template <class Base>
IndexIVFMultiAssign<Base>::IndexIVFMultiAssign(Base&& stock)
        : Base(copyable(stock)) {
    // Owned by `stock` until nothing can throw any more.
    this->own_fields = this->own_invlists = false;
    const idx_t stock_ntotal = this->ntotal;
    recount();
    if (n_copies_ == 0) {
        this->ntotal = stock_ntotal; // counts rows in no list, too
    }
    this->own_fields = std::exchange(stock.own_fields, false);
    this->own_invlists = std::exchange(stock.own_invlists, false);
}

template <class Base>
size_t IndexIVFMultiAssign<Base>::nentries() const {
    return this->invlists->compute_ntotal();
}

template <class Base>
std::vector<idx_t> IndexIVFMultiAssign<Base>::stored_ids() const {
    std::vector<idx_t> ids;
    ids.reserve(nentries());
    for (size_t list = 0; list < this->nlist; list++) {
        faiss::InvertedLists::ScopedIds list_ids(this->invlists, list);
        ids.insert(
                ids.end(),
                list_ids.get(),
                list_ids.get() + this->invlists->list_size(list));
    }
    return ids;
}

template <class Base>
void IndexIVFMultiAssign<Base>::recount() {
    std::vector<idx_t> ids = stored_ids();
    const size_t distinct = sort_and_count(ids);
    size_t run = 0, longest = 1;
    for (size_t i = 0; i < ids.size(); i++) {
        run = i > 0 && ids[i] == ids[i - 1] ? run + 1 : 1;
        FAISS_THROW_IF_NOT_FMT(
                run <= kMostCopies,
                "the id %ld is stored more than %zu times",
                long(ids[i]),
                kMostCopies);
        longest = std::max(longest, run);
    }
    this->ntotal = distinct;
    n_copies_ = ids.size() - distinct;
    max_copies_ = int(longest);
    max_id_ = ids.empty() ? max_id_ : std::max(max_id_, ids.back());
}

template <class Base>
ListStatistics IndexIVFMultiAssign<Base>::list_statistics() const {
    std::vector<std::pair<idx_t, size_t>> places; // id, list
    places.reserve(nentries());
    ListStatistics statistics;
    statistics.entries.resize(this->nlist);
    statistics.exclusive.resize(this->nlist);
    for (size_t list = 0; list < this->nlist; list++) {
        statistics.entries[list] = this->invlists->list_size(list);
        faiss::InvertedLists::ScopedIds ids(this->invlists, list);
        for (size_t j = 0; j < statistics.entries[list]; j++) {
            places.emplace_back(ids[j], list);
        }
    }
    std::sort(places.begin(), places.end());
    for (size_t i = 0; i < places.size(); i++) {
        const idx_t id = places[i].first;
        const bool alone = (i == 0 || places[i - 1].first != id) &&
                (i + 1 == places.size() || places[i + 1].first != id);
        statistics.exclusive[places[i].second] += alone;
    }
    statistics.imbalance = imbalance_factor(statistics.entries);
    statistics.exclusive_imbalance = imbalance_factor(statistics.exclusive);
    return statistics;
}

template <class Base>
void IndexIVFMultiAssign<Base>::check_complete() const {
    FAISS_THROW_IF_NOT_MSG(
            this->quantizer && this->invlists,
            "the index has no quantizer or no inverted lists");
    FAISS_THROW_IF_NOT_FMT(
            this->metric_type == faiss::METRIC_L2 ||
                    this->metric_type == faiss::METRIC_INNER_PRODUCT,
            "metric %d is neither L2 nor inner product",
            int(this->metric_type));
}

/*************************************************************************
 * Training
 *************************************************************************/

template <class Base>
void IndexIVFMultiAssign<Base>::set_mixture(const Mixture& mixture) {
    FAISS_THROW_IF_NOT_MSG(this->quantizer, "the index has no quantizer");
    const faiss::Index& quantizer = *this->quantizer;
    FAISS_THROW_IF_NOT_FMT(
            mixture.k == idx_t(this->nlist) && mixture.d == this->d,
            "the mixture has k = %ld, d = %ld, the index nlist = %zu, d = %d",
            long(mixture.k),
            long(mixture.d),
            this->nlist,
            this->d);
    try {
        mixture.check();
    } catch (const std::exception& error) {
        FAISS_THROW_MSG(error.what());
    }
    FAISS_THROW_IF_NOT_FMT(
            quantizer.ntotal == mixture.k,
            "the quantizer holds %ld centroids, not the %ld means",
            long(quantizer.ntotal),
            long(mixture.k));
    const idx_t list = first_foreign_mean(mixture);
    FAISS_THROW_IF_NOT_FMT(
            list == mixture.k,
            "mean %ld of the mixture is not the centroid of list %ld",
            long(list),
            long(list));
    mixture_ = mixture;
}

template <class Base>
idx_t IndexIVFMultiAssign<Base>::first_foreign_mean(
        const Mixture& mixture) const {
    std::vector<float> centroid(this->d);
    for (idx_t list = 0; list < mixture.k; list++) {
        this->quantizer->reconstruct(list, centroid.data());
        if (!std::equal(centroid.begin(), centroid.end(), mixture.mean(list))) {
            return list;
        }
    }
    return mixture.k;
}

template <class Base>
void IndexIVFMultiAssign<Base>::fit_around_centroids(
        FlashGMMClustering& clustering,
        idx_t n,
        const float* x) const {
    const auto* gmm_quantizer =
            dynamic_cast<const IndexFlatGMM*>(this->quantizer);
    if (gmm_quantizer &&
        gmm_quantizer->clustering.mixture.k == idx_t(this->nlist)) {
        clustering.mixture = gmm_quantizer->clustering.mixture;
        clustering.em_stats = gmm_quantizer->clustering.em_stats;
        return;
    }
    clustering.frozen_centroids = true;
    // What constrains the means has been done to the centroids.
    clustering.spherical = false;
    clustering.int_centroids = false;
    clustering.centroids.resize(this->nlist * this->d);
    this->quantizer->reconstruct_n(0, this->nlist, clustering.centroids.data());
    faiss::IndexFlatL2 means(this->d);
    clustering.train(n, x, means);
}

template <class Base>
void IndexIVFMultiAssign<Base>::train(idx_t n, const float* x) {
    check_complete();
    FAISS_THROW_IF_NOT_FMT(
            this->ntotal == 0 && nentries() == 0,
            "the index holds %ld vectors: reset() it before training",
            long(this->ntotal));
    FAISS_THROW_IF_NOT_FMT(n > 0, "%ld training vectors", long(n));
    assigner.check();
    check_finite(n, this->d, x);
    if constexpr (std::is_base_of_v<faiss::IndexIVFPQ, Base>) {
        FAISS_THROW_IF_NOT_FMT(
                n >= idx_t(this->pq.ksub),
                "%ld training vectors, the product quantizer needs %zu",
                long(n),
                this->pq.ksub);
    }

    faiss::Index& quantizer = *this->quantizer;
    const bool has_centroids =
            quantizer.is_trained && quantizer.ntotal == idx_t(this->nlist);
    const bool keeps_mixture = has_centroids && mixture_.k > 0 &&
            first_foreign_mean(mixture_) == mixture_.k;
    FlashGMMClustering clustering(this->d, this->nlist, this->cp, gmm);
    clustering.verbose |= this->verbose;

    TrainedParts<Base> before(*this, has_centroids);
    try {
        if (!has_centroids && this->quantizer_trains_alone != 1) {
            clustering.train(n, x, quantizer);
        }
        Base::train(n, x); // finds the centroids, trains the codec
        if (!keeps_mixture && clustering.mixture.k == 0 &&
            assigner.needs_mixture()) {
            fit_around_centroids(clustering, n, x);
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
void IndexIVFMultiAssign<Base>::check_usable() const {
    check_complete();
    FAISS_THROW_IF_NOT_MSG(
            this->is_trained, "the index is not trained: call train()");
}

template <class Base>
void IndexIVFMultiAssign<Base>::check_can_add(
        idx_t n,
        const float* x,
        const idx_t* xids) const {
    check_usable();
    assigner.check();
    FAISS_THROW_IF_NOT_FMT(n >= 0, "%ld vectors", long(n));
    FAISS_THROW_IF_NOT_MSG(
            !assigner.needs_mixture() || mixture_.k == idx_t(this->nlist),
            "the assignment policy needs a mixture: "
            "call train() or set_mixture()");
    check_finite(n, this->d, x);
    for (idx_t i = 0; xids && i < n; i++) {
        FAISS_THROW_IF_NOT_FMT(
                xids[i] != -1,
                "vector %ld has the id -1, which means no result",
                long(i));
    }
}

template <class Base>
std::vector<idx_t> IndexIVFMultiAssign<Base>::next_ids(idx_t n) const {
    // A direct map of type Array has a place for each id from 0 on.
    const bool array = this->direct_map.type == faiss::DirectMap::Array;
    FAISS_THROW_IF_NOT_MSG(
            array || max_id_ <= kLargestId - n,
            "add() continues after the largest id, and none is left there: "
            "use add_with_ids()");
    idx_t id = array ? idx_t(this->direct_map.array.size())
                     : std::max(max_id_ + 1, this->ntotal);
    std::vector<idx_t> ids(n);
    for (idx_t& next : ids) {
        next = id++;
    }
    return ids;
}

template <class Base>
void IndexIVFMultiAssign<Base>::assign_lists(
        idx_t n,
        const float* x,
        idx_t* lists) const {
    check_can_add(n, x, nullptr);
    const idx_t width = assigner.max_lists();
    std::vector<idx_t> primary(n), extra;
    this->quantizer->assign(n, x, primary.data());
    for (idx_t i0 = 0; i0 < n; i0 += kAddBlock) {
        const idx_t count = std::min(kAddBlock, n - i0);
        extra.resize(count * (width - 1));
        assigner.extra_lists(
                *this->quantizer,
                mixture_,
                count,
                x + i0 * this->d,
                primary.data() + i0,
                extra.data());
        for (idx_t i = 0; i < count; i++) {
            idx_t* row = lists + (i0 + i) * width;
            row[0] = primary[i0 + i];
            std::copy_n(extra.data() + i * (width - 1), width - 1, row + 1);
        }
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
    for (idx_t i = 0; i < n; i++) {
        FAISS_THROW_IF_NOT_FMT(
                precomputed_idx[i] < idx_t(this->nlist),
                "vector %ld is assigned to list %ld of %zu",
                long(i),
                long(precomputed_idx[i]),
                this->nlist);
    }
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
        own_ids = next_ids(n);
        xids = own_ids.data();
    }
    std::vector<idx_t> extra;
    for (idx_t i0 = 0; i0 < n; i0 += kAddBlock) {
        if (i0 > 0) {
            faiss::InterruptCallback::check();
        }
        const idx_t count = std::min(kAddBlock, n - i0);
        extra.resize(count * (assigner.max_lists() - 1));
        assigner.extra_lists(
                *this->quantizer,
                mixture_,
                count,
                x + i0 * this->d,
                primary + i0,
                extra.data());
        store_block(
                count,
                x + i0 * this->d,
                xids + i0,
                primary + i0,
                extra.data(),
                inverted_list_context);
    }
    if (this->verbose) {
        printf("IndexIVFMultiAssign: added %ld vectors, %.3f entries each\n",
               long(n),
               entries_per_vector());
    }
}

template <class Base>
void IndexIVFMultiAssign<Base>::store_block(
        idx_t n,
        const float* x,
        const idx_t* ids,
        const idx_t* primary,
        const idx_t* extra,
        void* inverted_list_context) {
    // Entries in the order of rows, so that lists are sorted by id wherever
    // those of a stock index are (IDSelectorRange::assume_sorted).
    const int n_extra = assigner.max_lists() - 1;
    std::vector<idx_t> rows, lists;
    rows.reserve(n * (1 + n_extra));
    lists.reserve(n * (1 + n_extra));
    size_t n_stored = 0;
    for (idx_t i = 0; i < n; i++) {
        if (primary[i] < 0) {
            continue;
        }
        n_stored++;
        rows.push_back(i);
        lists.push_back(primary[i]);
        for (const idx_t* list = extra + i * n_extra;
             list < extra + (i + 1) * n_extra && *list >= 0;
             list++) {
            rows.push_back(i);
            lists.push_back(*list);
        }
    }

    const size_t d = this->d;
    const size_t n_entries = rows.size();
    std::vector<float> gathered;
    if (n_stored != size_t(n) || n_entries != n_stored) {
        gathered.resize(n_entries * d);
        for (size_t e = 0; e < n_entries; e++) {
            std::copy_n(x + rows[e] * d, d, gathered.data() + e * d);
        }
        x = gathered.data();
    }
    std::vector<uint8_t> codes(n_entries * this->code_size);
    this->encode_vectors(n_entries, x, lists.data(), codes.data());

    constexpr size_t kNone = -1;
    std::vector<size_t> offsets(n_entries, kNone);
    std::exception_ptr failure;
#pragma omp parallel
    {
        // As stock FAISS: each thread owns a part of the lists.
        const idx_t n_threads = omp_get_num_threads();
        const idx_t rank = omp_get_thread_num();
        try {
            for (size_t e = 0; e < n_entries; e++) {
                if (lists[e] % n_threads == rank) {
                    offsets[e] = add_list_entry(
                            *this->invlists,
                            lists[e],
                            ids[rows[e]],
                            codes.data() + e * this->code_size,
                            inverted_list_context);
                }
            }
        } catch (...) {
#pragma omp critical(flashgmm_add_failure)
            failure = std::current_exception();
        }
    }
    if (failure) {
        for (size_t e = n_entries; e-- > 0;) {
            if (offsets[e] != kNone) {
                this->invlists->resize(lists[e], offsets[e]);
            }
        }
        std::rethrow_exception(failure);
    }

    const idx_t largest_id = *std::max_element(ids, ids + n);
    max_id_ = std::max(max_id_, largest_id);
    faiss::DirectMap& map = this->direct_map;
    if (map.type == faiss::DirectMap::Array) {
        map.array.resize(
                std::max<size_t>(map.array.size(), largest_id + 1), -1);
    }
    for (size_t e = 0; e < n_entries; e++) {
        if (e > 0 && rows[e] == rows[e - 1]) {
            continue; // not the primary copy
        }
        const idx_t id = ids[rows[e]];
        const idx_t place = faiss::lo_build(lists[e], offsets[e]);
        if (map.type == faiss::DirectMap::Array) {
            map.array[id] = place;
        } else if (map.type == faiss::DirectMap::Hashtable) {
            map.hashtable[id] = place;
        }
    }
    this->ntotal += n;
    n_copies_ += n_entries - n_stored;
    if (n_entries > n_stored) {
        max_copies_ = std::max(max_copies_, assigner.max_lists());
    }
}

template <class Base>
void IndexIVFMultiAssign<Base>::add_sa_codes(
        idx_t n,
        const uint8_t* codes,
        const idx_t* xids) {
    check_usable();
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
    std::vector<idx_t> ids =
            xids ? std::vector<idx_t>(xids, xids + n) : next_ids(n);
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
idx_t IndexIVFMultiAssign<Base>::id_of_pair(idx_t pair) const {
    return this->invlists->get_single_id(
            faiss::lo_listno(pair), faiss::lo_offset(pair));
}

template <class Base>
void IndexIVFMultiAssign<Base>::check_can_search(idx_t n) const {
    check_usable();
    FAISS_THROW_IF_NOT_FMT(n >= 0, "%ld queries", long(n));
    const int flag = this->PARALLEL_MODE_NO_HEAP_INIT;
    const int mode = this->parallel_mode & ~flag;
    FAISS_THROW_IF_NOT_FMT(mode >= 0 && mode <= 3, "parallel_mode is %d", mode);
    FAISS_THROW_IF_NOT_MSG(
            n_copies_ == 0 || !(this->parallel_mode & flag),
            "PARALLEL_MODE_NO_HEAP_INIT is not possible with vectors in two "
            "lists");
}

template <class Base>
void IndexIVFMultiAssign<Base>::check_preassigned(
        idx_t n,
        const idx_t* keys,
        bool store_pairs,
        const faiss::IVFSearchParameters* params) const {
    FAISS_THROW_IF_NOT_MSG(
            !(store_pairs && params && params->sel),
            "selector and store_pairs cannot be combined");
    const size_t nprobe =
            std::min(this->nlist, params ? params->nprobe : this->nprobe);
    for (size_t i = 0; i < n * nprobe; i++) {
        FAISS_THROW_IF_NOT_FMT(
                keys[i] < idx_t(this->nlist),
                "query %zu is assigned to list %ld of %zu",
                i / nprobe,
                long(keys[i]),
                this->nlist);
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
    check_can_search(n);
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
    check_can_search(n);
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
    check_can_search(n);
    check_preassigned(n, assign, store_pairs, params);
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
                    [&](idx_t label) {
                        return store_pairs ? id_of_pair(label) : label;
                    },
                    no_result,
                    k,
                    distances + (i0 + i) * k,
                    labels + (i0 + i) * k,
                    seen);
        }
    }
}

template <class Base>
void IndexIVFMultiAssign<Base>::check_range_search(
        idx_t n,
        const faiss::RangeSearchResult* result) const {
    check_usable();
    FAISS_THROW_IF_NOT_FMT(
            this->parallel_mode >= 0 && this->parallel_mode <= 2,
            "range search has no parallel_mode %d",
            this->parallel_mode);
    FAISS_THROW_IF_NOT_FMT(
            idx_t(result->nq) == n,
            "a result for %zu queries is given for %ld",
            result->nq,
            long(n));
    FAISS_THROW_IF_NOT_MSG(
            !result->labels && !result->distances,
            "the result of another search is given");
}

template <class Base>
void IndexIVFMultiAssign<Base>::make_unique(
        faiss::RangeSearchResult& result,
        bool store_pairs) const {
    if (n_copies_ > 0) {
        unique_range(
                result,
                [&](idx_t label) {
                    return store_pairs ? id_of_pair(label) : label;
                },
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
    check_range_search(n, result);
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
    check_range_search(nx, result);
    check_preassigned(nx, keys, store_pairs, params);
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
    check_usable();
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
size_t IndexIVFMultiAssign<Base>::remove_entries(const faiss::IDSelector& sel) {
    std::vector<std::pair<size_t, size_t>> places; // list, offset
    std::vector<idx_t> removed;
    for (size_t list = 0; list < this->nlist; list++) {
        const size_t size = this->invlists->list_size(list);
        faiss::InvertedLists::ScopedIds ids(this->invlists, list);
        for (size_t j = 0; j < size; j++) {
            if (sel.is_member(ids[j])) {
                places.emplace_back(list, j);
                removed.push_back(ids[j]);
            }
        }
    }

    faiss::DirectMap& map = this->direct_map;
    auto move_in_map = [&](idx_t id, idx_t from, idx_t to) {
        if (map.type == faiss::DirectMap::Array && map.array[id] == from) {
            map.array[id] = to;
        } else if (map.type == faiss::DirectMap::Hashtable) {
            auto entry = map.hashtable.find(id);
            if (entry != map.hashtable.end() && entry->second == from) {
                entry->second = to;
            }
        }
    };

    // From the end of each list, so that its last entry always stays.
    for (size_t p = places.size(); p-- > 0;) {
        const auto [list, offset] = places[p];
        const size_t last = this->invlists->list_size(list) - 1;
        if (offset != last) {
            const idx_t id = this->invlists->get_single_id(list, last);
            this->invlists->update_entry(
                    list,
                    offset,
                    id,
                    faiss::InvertedLists::ScopedCodes(
                            this->invlists, list, last)
                            .get());
            move_in_map(
                    id,
                    faiss::lo_build(list, last),
                    faiss::lo_build(list, offset));
        }
        this->invlists->resize(list, last);
    }

    for (idx_t id : removed) {
        if (map.type == faiss::DirectMap::Array) {
            map.array[id] = -1;
        } else if (map.type == faiss::DirectMap::Hashtable) {
            map.hashtable.erase(id);
        }
    }
    const size_t n_removed = sort_and_count(removed);
    this->ntotal -= n_removed;
    n_copies_ -= places.size() - n_removed;
    return n_removed;
}

template <class Base>
size_t IndexIVFMultiAssign<Base>::remove_ids(const faiss::IDSelector& sel) {
    FAISS_THROW_IF_NOT_MSG(
            this->direct_map.type != faiss::DirectMap::Array,
            "vectors cannot be removed with a direct map of type Array");
    const auto* array = dynamic_cast<const faiss::IDSelectorArray*>(&sel);
    if (!array) {
        return remove_entries(sel);
    }
    if (n_copies_ == 0 && !this->direct_map.no()) {
        return Base::remove_ids(sel); // through the map
    }
    return remove_entries(faiss::IDSelectorBatch(array->n, array->ids));
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
    const faiss::DirectMap& map = this->direct_map;
    std::unordered_set<idx_t> given;
    for (int i = 0; i < nv; i++) {
        const bool known = map.type == faiss::DirectMap::Array
                ? idx[i] >= 0 && idx[i] < idx_t(map.array.size())
                : map.hashtable.count(idx[i]) > 0;
        FAISS_THROW_IF_NOT_FMT(
                known, "there is no vector with the id %ld", long(idx[i]));
        FAISS_THROW_IF_NOT_FMT(
                given.insert(idx[i]).second,
                "the id %ld is given twice",
                long(idx[i]));
    }
    std::vector<idx_t> primary(nv);
    this->quantizer->assign(nv, v, primary.data());

    const idx_t ntotal = this->ntotal;
    remove_entries(faiss::IDSelectorBatch(nv, idx));
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
    std::vector<idx_t> ids = stored_ids(), other_ids = other.stored_ids();
    for (idx_t& id : other_ids) {
        const bool overflow = __builtin_add_overflow(id, add_id, &id);
        FAISS_THROW_IF_NOT_FMT(
                !overflow && id != -1,
                "an id plus %ld is not a valid id",
                long(add_id));
    }
    std::sort(ids.begin(), ids.end());
    std::sort(other_ids.begin(), other_ids.end());
    check_disjoint(ids, other_ids);

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
    FAISS_THROW_IF_NOT_MSG(
            &other != this, "an index cannot be copied to itself");
    FAISS_THROW_IF_NOT_FMT(
            other.nlist == this->nlist && other.code_size == this->code_size,
            "the other index has %zu lists of codes of %zu bytes, not %zu of "
            "%zu",
            other.nlist,
            other.code_size,
            this->nlist,
            this->code_size);
    FAISS_THROW_IF_NOT_MSG(
            other.direct_map.no(), "the other index has a direct map");
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
    FAISS_THROW_IF_NOT_FMT(
            type == 0 || a1 > 0, "ids modulo %ld are asked for", long(a1));
    auto is_member = [&](idx_t id) {
        return type == 0 ? a1 <= id && id < a2 : id % a1 == a2;
    };

    std::vector<idx_t> ids = stored_ids();
    ids.erase(
            std::remove_if(
                    ids.begin(),
                    ids.end(),
                    [&](idx_t id) { return !is_member(id); }),
            ids.end());
    const size_t n_vectors = sort_and_count(ids);
    if (multi) {
        std::vector<idx_t> other_ids;
        for (size_t list = 0; list < other.nlist; list++) {
            faiss::InvertedLists::ScopedIds list_ids(other.invlists, list);
            other_ids.insert(
                    other_ids.end(),
                    list_ids.get(),
                    list_ids.get() + other.invlists->list_size(list));
        }
        std::sort(other_ids.begin(), other_ids.end());
        check_disjoint(ids, other_ids);
    } else {
        FAISS_THROW_IF_NOT_MSG(
                n_vectors == ids.size(),
                "vectors in two lists need a multi-assign index to be copied "
                "to");
    }

    for (size_t list = 0; list < this->nlist; list++) {
        faiss::InvertedLists::ScopedIds list_ids(this->invlists, list);
        const size_t size = this->invlists->list_size(list);
        for (size_t j = 0; j < size; j++) {
            if (is_member(list_ids[j])) {
                other.invlists->add_entry(
                        list,
                        list_ids[j],
                        faiss::InvertedLists::ScopedCodes(
                                this->invlists, list, j)
                                .get());
            }
        }
    }
    if (multi) {
        multi->recount();
    } else {
        other.ntotal += n_vectors;
    }
}

template struct IndexIVFMultiAssign<faiss::IndexIVFFlat>;
template struct IndexIVFMultiAssign<faiss::IndexIVFPQ>;

/*************************************************************************
 * Taking over stock indexes
 *************************************************************************/

namespace {

template <class Base>
IVFMultiAssign* take_over(faiss::Index*& index) {
    if (typeid(*index) != typeid(Base)) {
        return nullptr;
    }
    auto* multi = new IndexIVFMultiAssign<Base>(
            std::move(static_cast<Base&>(*index)));
    delete index;
    index = multi;
    return multi;
}

IVFMultiAssign* convert(faiss::Index*& index);

template <class Wrapper>
IVFMultiAssign* convert_wrapped(Wrapper& wrapper) {
    FAISS_THROW_IF_NOT_FMT(
            wrapper.own_fields,
            "a wrapper of type %s does not own its index",
            typeid(wrapper).name());
    IVFMultiAssign* multi = convert(wrapper.index);
    wrapper.ntotal = wrapper.index->ntotal;
    return multi;
}

/// Replaces `index`, or the index that it wraps. Changes nothing if it throws.
IVFMultiAssign* convert(faiss::Index*& index) {
    if (auto* multi = dynamic_cast<IVFMultiAssign*>(index)) {
        return multi;
    }
    if (auto* multi = take_over<faiss::IndexIVFFlat>(index)) {
        return multi;
    }
    if (auto* multi = take_over<faiss::IndexIVFPQ>(index)) {
        return multi;
    }
    if (auto* wrapper = dynamic_cast<faiss::IndexPreTransform*>(index)) {
        return convert_wrapped(*wrapper);
    }
    if (auto* wrapper = dynamic_cast<faiss::IndexIDMap*>(index)) {
        return convert_wrapped(*wrapper);
    }
    FAISS_THROW_FMT(
            "an index of type %s is not an IndexIVFFlat or IndexIVFPQ",
            typeid(*index).name());
}

} // namespace

IVFMultiAssign* make_multi_assign(
        std::unique_ptr<faiss::Index>& index,
        const MultiAssign& assigner,
        const FlashGMMOptions& gmm) {
    assigner.check();
    FAISS_THROW_IF_NOT_MSG(index, "there is no index");
    faiss::Index* owned = index.release();
    IVFMultiAssign* multi = nullptr;
    try {
        multi = convert(owned);
    } catch (...) {
        index.reset(owned);
        throw;
    }
    index.reset(owned);
    multi->assigner = assigner;
    multi->gmm = gmm;
    return multi;
}

} // namespace faiss_flashgmm
