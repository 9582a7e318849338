#pragma once

#include <faiss/IndexFlat.h>
#include <faiss/IndexIVF.h>

#include <faiss_flashgmm/FlashGMMClustering.h>

namespace faiss_flashgmm {

/** Trains a stock IVF index with the mixture as coarse quantizer.
 *
 * Fills ivf.quantizer with the means of the mixture; ivf.train() then finds a
 * trained quantizer, runs no k-means, and trains the codec. Afterwards
 * `clustering` holds the mixture.
 *
 * @param ivf           any IndexIVF, holding no vectors
 * @param clustering    its d and k must be ivf.d and ivf.nlist
 */
void train_ivf(
        faiss::IndexIVF& ivf,
        FlashGMMClustering& clustering,
        idx_t n,
        const float* x);

/// The same with a clustering made from ivf.cp; returns it.
FlashGMMClustering train_ivf(
        faiss::IndexIVF& ivf,
        idx_t n,
        const float* x,
        const FlashGMMOptions& gmm = {});

/** A flat coarse quantizer that trains itself by fitting a mixture.
 *
 * Put under an IVF index with quantizer_trains_alone = 1. FAISS does not hand
 * ivf.cp to it: set the parameters on `clustering`.
 */
struct IndexFlatGMM : faiss::IndexFlat {
    FlashGMMClustering clustering;

    IndexFlatGMM(
            idx_t d,
            idx_t nlist,
            faiss::MetricType metric = faiss::METRIC_L2);

    /// Fits the mixture and stores its means, replacing what is stored.
    void train(idx_t n, const float* x) override;
};

} // namespace faiss_flashgmm
