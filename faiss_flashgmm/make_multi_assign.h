#pragma once

#include <memory>
#include <vector>

#include <faiss/Index.h>

#include <faiss_flashgmm/IVFMultiAssign.h>

namespace faiss_flashgmm {

/** Replaces the IVF index in `index` by its multi-assign type, so that strings
 * of faiss::index_factory serve to make one.
 *
 * Looks through IndexPreTransform, IndexIDMap(2), IndexRefine, IndexShards and
 * IndexReplicas, which must own what they wrap. Throws
 * faiss::FaissException, leaving `index` as it was, if what is inside has no
 * multi-assign type.
 *
 * @return the multi-assign part, owned by `index`; the first one of shards and
 *         replicas
 */
IVFMultiAssign* make_multi_assign(
        std::unique_ptr<faiss::Index>& index,
        const MultiAssign& assigner = {},
        const FlashGMMOptions& gmm = {});

/// All multi-assign parts of an index, below the same wrappers.
std::vector<IVFMultiAssign*> multi_assign_parts(faiss::Index& index);

} // namespace faiss_flashgmm
