#include <faiss_flashgmm/em/EMOptions.h>

#include <cmath>

#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

void EMOptions::check() const {
    FLASHGMM_THROW_IF_NOT_FMT(niter >= 0, "niter = %d is negative", niter);
    FLASHGMM_THROW_IF_NOT_FMT(nredo >= 1, "nredo = %d is not positive", nredo);
    FLASHGMM_THROW_IF_NOT_FMT(
            tol >= 0 && std::isfinite(tol), "tol = %g must be >= 0", tol);
    FLASHGMM_THROW_IF_NOT_FMT(
            frozen_means >= 0,
            "frozen_means = %ld is negative",
            long(frozen_means));
    FLASHGMM_THROW_IF_NOT_FMT(
            init_iterations >= 0,
            "init_iterations = %d is negative",
            init_iterations);
    FLASHGMM_THROW_IF_NOT_FMT(
            init_rows_per_component >= 1,
            "init_rows_per_component = %ld must be at least 1",
            long(init_rows_per_component));
    FLASHGMM_THROW_IF_NOT_FMT(
            max_rows_per_component >= 0,
            "max_rows_per_component = %ld is negative",
            long(max_rows_per_component));
    FLASHGMM_THROW_IF_NOT_FMT(
            variance_floor > 0 && variance_floor < 1,
            "variance_floor = %g must lie in (0, 1)",
            variance_floor);
    FLASHGMM_THROW_IF_NOT_FMT(
            empty_threshold >= 0 && empty_threshold < 1,
            "empty_threshold = %g must lie in [0, 1)",
            empty_threshold);
    FLASHGMM_THROW_IF_NOT_FMT(
            chunk_rows >= 0, "chunk_rows = %ld is negative", long(chunk_rows));
}

} // namespace faiss_flashgmm
