// Built instead of NearRows_gpu.cpp without CUDA.

#include <faiss_flashgmm/NearRows.h>

#include <faiss/impl/FaissAssert.h>

namespace faiss_flashgmm {

std::unique_ptr<NearRows> near_rows_on_gpu(
        const faiss::Index&,
        const NearRowsOptions& options,
        idx_t,
        const float*) {
    FAISS_THROW_IF_NOT_MSG(
            options.search != NeighborSearch::gpu,
            "neighbors cannot be looked for on the GPU: the library was built "
            "without CUDA (-DFLASHGMM_CUDA=ON)");
    return nullptr;
}

bool probing_order_on_gpu(
        const faiss::Index&,
        NeighborSearch,
        idx_t,
        idx_t,
        const float*,
        idx_t*) {
    return false;
}

} // namespace faiss_flashgmm
