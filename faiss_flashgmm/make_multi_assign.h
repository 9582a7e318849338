#pragma once

#include <memory>

#include <faiss/Index.h>

#include <faiss_flashgmm/IVFMultiAssign.h>

namespace faiss_flashgmm {

/** Replaces the IndexIVFFlat or IndexIVFPQ in `index` by its multi-assign
 * type, so that strings of faiss::index_factory serve to make one.
 *
 * Looks through IndexPreTransform and IndexIDMap(2), which must own what they
 * wrap. Throws faiss::FaissException, leaving `index` as it was, if there is
 * no such index inside.
 *
 * @return the multi-assign part, owned by `index`
 */
IVFMultiAssign* make_multi_assign(
        std::unique_ptr<faiss::Index>& index,
        const MultiAssign& assigner = {},
        const FlashGMMOptions& gmm = {});

} // namespace faiss_flashgmm
