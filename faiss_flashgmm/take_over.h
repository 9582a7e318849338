#pragma once

#include <faiss/Index.h>

#include <faiss_flashgmm/IVFMultiAssign.h>

namespace faiss_flashgmm {

/** Replaces a stock IVF index by its multi-assign type, which takes over what
 * it owns. An exception leaves it as it was.
 *
 * @param known     counts() of its lists, trusted; null: the lists are read
 * @return          null, and `index` untouched, if there is no multi-assign
 *                  type for it
 */
IVFMultiAssign* take_over(
        faiss::Index*& index,
        const EntryCounts* known = nullptr);

} // namespace faiss_flashgmm
