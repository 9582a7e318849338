#include <faiss_flashgmm/IVFMultiAssign.h>

#include <algorithm>

namespace faiss_flashgmm {

double IVFMultiAssign::entries_per_vector() const {
    const size_t entries = nentries();
    return entries == n_copies_ ? 1
                                : double(entries) / double(entries - n_copies_);
}

void IVFMultiAssign::complete_lists(
        const faiss::Index& quantizer,
        idx_t n,
        const float* x,
        const idx_t* primary,
        idx_t* lists) const {
    const idx_t width = assigner.max_lists();
    std::vector<idx_t> extra(n * (width - 1));
    assigner.extra_lists(quantizer, mixture_, n, x, primary, extra.data());
    for (idx_t i = 0; i < n; i++) {
        lists[i * width] = primary[i];
        std::copy_n(
                extra.data() + i * (width - 1),
                width - 1,
                lists + i * width + 1);
    }
}

} // namespace faiss_flashgmm
