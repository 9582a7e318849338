#include <faiss_flashgmm/em/Backend.h>

#include <faiss_flashgmm/em/RowMoments.h>

namespace faiss_flashgmm {

std::string Backend::add_moments(
        int64_t first,
        const Rows& rows,
        RowMoments& moments) {
    return moments.add(first, rows);
}

} // namespace faiss_flashgmm
