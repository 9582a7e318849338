#include <faiss_flashgmm/ivf_training.h>

#include <algorithm>
#include <exception>

#include <faiss/IndexFlat.h>
#include <faiss/IndexIVFPQ.h>
#include <faiss/IndexIVFPQFastScan.h>
#include <faiss/IndexScalarQuantizer.h>
#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/ivf_checks.h>
#include <faiss_flashgmm/train_ivf.h>

namespace faiss_flashgmm {

namespace {

const faiss::ProductQuantizer* product_quantizer(const faiss::IndexIVF& ivf) {
    if (auto* ivf_pq = dynamic_cast<const faiss::IndexIVFPQ*>(&ivf)) {
        return &ivf_pq->pq;
    }
    auto* fast_scan = dynamic_cast<const faiss::IndexIVFPQFastScan*>(&ivf);
    return fast_scan ? &fast_scan->pq : nullptr;
}

/// Puts back a member of the index as it is now; empty if `ivf` is no Index.
template <class Index, class Codec>
std::function<void()> saved(faiss::IndexIVF& ivf, Codec Index::*codec) {
    auto* index = dynamic_cast<Index*>(&ivf);
    if (!index) {
        return {};
    }
    return [index, codec, copy = index->*codec] { index->*codec = copy; };
}

} // namespace

void check_training_rows(const faiss::IndexIVF& ivf, idx_t n, const float* x) {
    check_finite(n, ivf.d, x);
    if (const faiss::ProductQuantizer* pq = product_quantizer(ivf)) {
        FAISS_THROW_IF_NOT_FMT(
                n >= idx_t(pq->ksub),
                "%ld training vectors, the product quantizer needs %zu",
                long(n),
                pq->ksub);
    }
}

idx_t first_foreign_mean(
        const faiss::Index& quantizer,
        const Mixture& mixture) {
    std::vector<float> centroid(quantizer.d);
    for (idx_t list = 0; list < mixture.k; list++) {
        quantizer.reconstruct(list, centroid.data());
        if (!std::equal(centroid.begin(), centroid.end(), mixture.mean(list))) {
            return list;
        }
    }
    return mixture.k;
}

void check_mixture(const faiss::IndexIVF& ivf, const Mixture& mixture) {
    FAISS_THROW_IF_NOT_MSG(ivf.quantizer, "the index has no quantizer");
    FAISS_THROW_IF_NOT_FMT(
            mixture.k == idx_t(ivf.nlist) && mixture.d == ivf.d,
            "the mixture has k = %ld, d = %ld, the index nlist = %zu, d = %d",
            long(mixture.k),
            long(mixture.d),
            ivf.nlist,
            ivf.d);
    try {
        mixture.check();
    } catch (const std::exception& error) {
        FAISS_THROW_MSG(error.what());
    }
    FAISS_THROW_IF_NOT_FMT(
            ivf.quantizer->ntotal == mixture.k,
            "the quantizer holds %ld centroids, not the %ld means",
            long(ivf.quantizer->ntotal),
            long(mixture.k));
    const idx_t list = first_foreign_mean(*ivf.quantizer, mixture);
    FAISS_THROW_IF_NOT_FMT(
            list == mixture.k,
            "mean %ld of the mixture is not the centroid of list %ld",
            long(list),
            long(list));
}

void fit_around_centroids(
        const faiss::IndexIVF& ivf,
        FlashGMMClustering& clustering,
        idx_t n,
        const float* x) {
    const auto* gmm_quantizer =
            dynamic_cast<const IndexFlatGMM*>(ivf.quantizer);
    if (gmm_quantizer &&
        gmm_quantizer->clustering.mixture.k == idx_t(ivf.nlist)) {
        clustering.mixture = gmm_quantizer->clustering.mixture;
        clustering.em_stats = gmm_quantizer->clustering.em_stats;
        return;
    }
    clustering.frozen_centroids = true;
    // What constrains the means has been done to the centroids.
    clustering.spherical = false;
    clustering.int_centroids = false;
    clustering.centroids.resize(ivf.nlist * ivf.d);
    ivf.quantizer->reconstruct_n(0, ivf.nlist, clustering.centroids.data());
    faiss::IndexFlatL2 means(ivf.d);
    clustering.train(n, x, means);
}

TrainedParts::TrainedParts(faiss::IndexIVF& ivf, bool keeps_centroids)
        : ivf_(ivf),
          keeps_centroids_(keeps_centroids),
          quantizer_trained_(ivf.quantizer->is_trained),
          index_trained_(ivf.is_trained) {
    if (!keeps_centroids) {
        centroids_.resize(size_t(ivf.quantizer->ntotal) * ivf.d);
        ivf.quantizer->reconstruct_n(
                0, ivf.quantizer->ntotal, centroids_.data());
    }
    for (const auto& restore :
         {saved(ivf, &faiss::IndexIVFPQ::pq),
          saved(ivf, &faiss::IndexIVFPQFastScan::pq),
          saved(ivf, &faiss::IndexIVFScalarQuantizer::sq)}) {
        if (restore) {
            restore_codec_ = restore;
        }
    }
}

void TrainedParts::restore() {
    ivf_.is_trained = index_trained_;
    if (restore_codec_) {
        restore_codec_();
    }
    if (!keeps_centroids_) {
        faiss::Index& quantizer = *ivf_.quantizer;
        quantizer.reset();
        if (!centroids_.empty()) {
            quantizer.add(centroids_.size() / ivf_.d, centroids_.data());
        }
        quantizer.is_trained = quantizer_trained_;
    }
}

} // namespace faiss_flashgmm
