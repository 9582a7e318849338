#include <faiss_flashgmm/IndexIVFMultiAssign.h>

#include <algorithm>
#include <typeinfo>
#include <utility>

#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/IndexIVFMultiAssign_add-inl.h>
#include <faiss_flashgmm/IndexIVFMultiAssign_change-inl.h>
#include <faiss_flashgmm/IndexIVFMultiAssign_search-inl.h>
#include <faiss_flashgmm/ivf_checks.h>
#include <faiss_flashgmm/ivf_training.h>
#include <faiss_flashgmm/list_entries.h>

namespace faiss_flashgmm {

namespace {

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
        : Parent(copyable(stock)) {
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

#define FAISS_FLASHGMM_DEFINE(type) \
    template struct IndexIVFMultiAssign<faiss::type>;
FAISS_FLASHGMM_FOR_EACH_CODEC(FAISS_FLASHGMM_DEFINE)
#undef FAISS_FLASHGMM_DEFINE

} // namespace faiss_flashgmm
