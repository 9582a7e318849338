#pragma once

// Policies that look at the residuals of a row to the centroids.

#include <faiss/Index.h>

#include <faiss_flashgmm/MultiAssign.h>
#include <faiss_flashgmm/compat.h>

namespace faiss_flashgmm {

/// MultiAssign::extra_lists() for nearest, air and soar. The outputs hold -1
/// and -infinity.
void residual_lists(
        const MultiAssign& assigner,
        const faiss::Index& quantizer,
        idx_t n,
        const float* x,
        const idx_t* primary,
        idx_t* extra,
        float* scores);

} // namespace faiss_flashgmm
