#pragma once

// The centroids of a trained IVF index and the mixture that belongs to them.

#include <functional>
#include <vector>

#include <faiss/IndexIVF.h>

#include <faiss_flashgmm/FlashGMMClustering.h>
#include <faiss_flashgmm/compat.h>

namespace faiss_flashgmm {

/// Throws faiss::FaissException unless the rows are finite, and enough for the
/// codec.
void check_training_rows(const faiss::IndexIVF& ivf, idx_t n, const float* x);

/// The first mean that is not the centroid of its list; k if there is none.
idx_t first_foreign_mean(const faiss::Index& quantizer, const Mixture& mixture);

/// Throws faiss::FaissException unless the components are the lists.
void check_mixture(const faiss::IndexIVF& ivf, const Mixture& mixture);

/// Fits variances and weights with the centroids as means. Takes the mixture
/// of an IndexFlatGMM as it is.
void fit_around_centroids(
        const faiss::IndexIVF& ivf,
        FlashGMMClustering& clustering,
        idx_t n,
        const float* x);

/// What train() changes of an index, to put it back.
class TrainedParts {
   public:
    TrainedParts(faiss::IndexIVF& ivf, bool keeps_centroids);

    void restore();

   private:
    faiss::IndexIVF& ivf_;
    bool keeps_centroids_;
    bool quantizer_trained_;
    bool index_trained_;
    std::vector<float> centroids_;
    std::function<void()> restore_codec_; ///< empty: no codec is trained
};

} // namespace faiss_flashgmm
