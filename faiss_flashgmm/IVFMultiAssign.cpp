#include <faiss_flashgmm/IVFMultiAssign.h>

#include <algorithm>

#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/ivf_checks.h>

namespace faiss_flashgmm {

double IVFMultiAssign::entries_per_vector() const {
    const size_t entries = nentries();
    return entries == n_copies_ ? 1
                                : double(entries) / double(entries - n_copies_);
}

void IVFMultiAssign::learn_assignment(
        const faiss::Index& quantizer,
        const Mixture& mixture,
        idx_t n,
        const float* x) {
    if (!assigner.needs_learning(false)) {
        return;
    }
    const idx_t n_queries = sample_queries.size() / quantizer.d;
    FAISS_THROW_IF_NOT_FMT(
            n_queries * quantizer.d == idx_t(sample_queries.size()),
            "sample_queries holds %zu values, not a multiple of d = %d",
            sample_queries.size(),
            int(quantizer.d));
    check_finite(n_queries, quantizer.d, sample_queries.data());
    assigner.learn(
            quantizer,
            mixture,
            n,
            x,
            n_queries,
            n_queries > 0 ? sample_queries.data() : nullptr);
}

void IVFMultiAssign::complete_lists(
        const faiss::Index& quantizer,
        idx_t n,
        const float* x,
        const idx_t* primary,
        bool bulk,
        idx_t* lists) const {
    const idx_t width = assigner.max_lists();
    std::vector<idx_t> extra(n * (width - 1));
    assigner.choose(quantizer, mixture_, n, x, primary, bulk, extra.data());
    for (idx_t i = 0; i < n; i++) {
        lists[i * width] = primary[i];
        std::copy_n(
                extra.data() + i * (width - 1),
                width - 1,
                lists + i * width + 1);
    }
}

} // namespace faiss_flashgmm
