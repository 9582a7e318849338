#pragma once

#include <memory>

#include <faiss/IndexIVF.h>

#include <faiss_flashgmm/compat.h>

#if FAISS_FLASHGMM_HAS_RABITQ
#include <faiss/IndexIVFRaBitQ.h>
#endif

namespace faiss_flashgmm {

/// The parameters of a FastScan search with nprobe at most nlist, which FAISS
/// clamps for other codecs only.
class AtMostAllLists {
   public:
    AtMostAllLists(
            const faiss::IndexIVF& ivf,
            const faiss::SearchParameters* given)
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

} // namespace faiss_flashgmm
