#pragma once

#include <memory>
#include <string>

#include <faiss/Index.h>

namespace faiss_flashgmm {

/** Builds an index from a description: that of faiss::index_factory with two
 * more parts (docs/factory.md).
 *
 *     IVF4096_GMM,PQ32x4fs,MA(soar,1.5),RFlat
 *
 * `_GMM` or `_GMM(options)` after the coarse quantizer: its centroids are the
 * means of a mixture, else those of k-means. `MA` or `MA(options)` anywhere
 * after it: vectors are stored in the lists that this policy says. Options are
 * the name of a policy or model, or name=value of a field of MultiAssign or
 * FlashGMMOptions.
 *
 * An index with either part is of a multi-assign type; without, it is exactly
 * what faiss::index_factory gives.
 *
 * Throws faiss::FaissException naming the part it cannot read.
 */
std::unique_ptr<faiss::Index> index_factory(
        int d,
        const char* description,
        faiss::MetricType metric = faiss::METRIC_L2);

/** The description that builds an index like this one, untrained and empty.
 *
 * Options that have their default are left out. A transform that FAISS reads
 * from a file as a plain matrix (OPQ) has no name any more; for this, and for
 * types that no description builds, faiss::FaissException is thrown.
 */
std::string index_description(const faiss::Index& index);

} // namespace faiss_flashgmm
