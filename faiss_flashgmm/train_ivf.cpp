#include <faiss_flashgmm/train_ivf.h>

#include <faiss/impl/FaissAssert.h>

namespace faiss_flashgmm {

void train_ivf(
        faiss::IndexIVF& ivf,
        FlashGMMClustering& clustering,
        idx_t n,
        const float* x) {
    FAISS_THROW_IF_NOT_FMT(
            ivf.ntotal == 0,
            "the index holds %ld vectors: reset() it before training",
            long(ivf.ntotal));
    FAISS_THROW_IF_NOT_FMT(
            clustering.d == size_t(ivf.d) && clustering.k == ivf.nlist,
            "clustering of d = %zd, k = %zd for an index of d = %d, "
            "nlist = %zd",
            clustering.d,
            clustering.k,
            int(ivf.d),
            ivf.nlist);
    clustering.train(n, x, *ivf.quantizer);
    ivf.is_trained = false;
    ivf.train(n, x); // finds the quantizer trained: trains the codec alone
}

FlashGMMClustering train_ivf(
        faiss::IndexIVF& ivf,
        idx_t n,
        const float* x,
        const FlashGMMOptions& gmm) {
    FlashGMMClustering clustering(int(ivf.d), int(ivf.nlist), ivf.cp, gmm);
    clustering.verbose |= ivf.verbose;
    train_ivf(ivf, clustering, n, x);
    return clustering;
}

IndexFlatGMM::IndexFlatGMM(idx_t d, idx_t nlist, faiss::MetricType metric)
        : faiss::IndexFlat(d, metric), clustering(int(d), int(nlist)) {
    is_trained = false;
}

void IndexFlatGMM::train(idx_t n, const float* x) {
    // The clustering fills a plain index, so that a failure leaves this one
    // as it was.
    faiss::IndexFlat means(d, metric_type);
    clustering.verbose |= verbose;
    clustering.train(n, x, means);
    reset();
    is_trained = true;
    add(means.ntotal, clustering.centroids.data());
}

} // namespace faiss_flashgmm
