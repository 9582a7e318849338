#pragma once

#include <functional>
#include <string>

#include <faiss/Index.h>
#include <faiss/IndexIVF.h>

#include <faiss_flashgmm/IVFMultiAssign.h>

namespace faiss_flashgmm {

/** Calls visit(path, part) for an index and all indexes inside, an outer one
 * before those it holds; the path of the outermost is "".
 *
 * Looks into IndexPreTransform, IndexIDMap(2), IndexRefine, IndexShards,
 * IndexReplicas and the quantizers of IVF indexes. `part` may be replaced by
 * an index that takes its place, except the parts of IndexShards and
 * IndexReplicas, which are passed as copies of the pointer.
 */
void for_each_part(
        faiss::Index*& index,
        const std::function<void(const std::string&, faiss::Index*&)>& visit);

void for_each_part(
        const faiss::Index& index,
        const std::function<void(const std::string&, const faiss::Index&)>&
                visit);

/** The multi-assign part of an index: the index itself, or the first inside.
 *
 * @return null if there is none
 */
IVFMultiAssign* find_multi_assign(faiss::Index& index);
const IVFMultiAssign* find_multi_assign(const faiss::Index& index);

/** The IVF index in `index`, of any type, like faiss::ivflib's, and through
 * IndexRefine, IndexShards and IndexReplicas (the first part) as well.
 *
 * @return null if there is none
 */
faiss::IndexIVF* try_extract_index_ivf(faiss::Index* index);

/// The same; throws faiss::FaissException if there is none.
faiss::IndexIVF* extract_index_ivf(faiss::Index* index);
const faiss::IndexIVF* extract_index_ivf(const faiss::Index* index);

} // namespace faiss_flashgmm
