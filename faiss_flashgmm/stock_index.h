#pragma once

#include <memory>

#include <faiss/Index.h>

#include <faiss_flashgmm/FlashGMMClustering.h>
#include <faiss_flashgmm/MultiAssign.h>

namespace faiss_flashgmm {

/// Which entries of a vector a stock index gets.
enum class StockCopies {
    single, ///< that of the primary list: searches repeat no id
    all,    ///< every copy: stock searches repeat ids, IndexUniqueIds does not
};

/** A copy of an index in stock FAISS types only: for faiss::write_index, a GPU
 * cloner, or code that knows nothing of copies. ntotal counts vectors.
 *
 * An index does not keep which list of a vector was the primary one, and codes
 * that lose something do not tell where it is a close call. `single` keeps the
 * entry in the list whose centroid is nearest to the mean of the decoded copies
 * (or has the largest inner product with it): exactly the primary one for flat
 * codes, and most often for others.
 *
 * @param index     anything that write_index() can write
 */
std::unique_ptr<faiss::Index> to_stock(
        const faiss::Index& index,
        StockCopies copies = StockCopies::single);

/** A copy of an index in which IVF indexes are of their multi-assign types, as
 * make_multi_assign() has it. Copies in the lists are recognized by their id.
 */
std::unique_ptr<faiss::Index> from_stock(
        const faiss::Index& index,
        const MultiAssign& assigner = {},
        const FlashGMMOptions& gmm = {});

} // namespace faiss_flashgmm
