#include <faiss_flashgmm/em/Backend.h>

#include <faiss_flashgmm/em/Initialization.h>
#include <faiss_flashgmm/em/RowMoments.h>

namespace faiss_flashgmm {

std::string Backend::add_moments(
        int64_t first,
        const Rows& rows,
        RowMoments& moments) {
    return moments.add(first, rows);
}

void Backend::draw_kmeans_pp(
        RowSource& rows,
        int64_t first,
        int64_t k,
        uint64_t seed,
        float* means,
        const std::function<void(int64_t)>& on_mean) {
    faiss_flashgmm::draw_kmeans_pp(rows, first, k, seed, means, on_mean);
}

} // namespace faiss_flashgmm
