#pragma once

#include <memory>

#include <faiss/IndexIVFPQFastScan.h>

#include <faiss_flashgmm/compat.h>

namespace faiss_flashgmm {

#if FAISS_FLASHGMM_HAS_FAST_SCAN_SCANNER

/** The base class of the FastScan form of IndexIVFMultiAssign: searches drop
 * repeats while they scan, if the index holds any.
 *
 * The scanners of FAISS keep copies like other entries, so a search with them
 * has to keep up to twice the results.
 */
struct UniqueIVFPQFastScan : faiss::IndexIVFPQFastScan {
    using IndexIVFPQFastScan::IndexIVFPQFastScan;
    UniqueIVFPQFastScan() = default;
    explicit UniqueIVFPQFastScan(const faiss::IndexIVFPQFastScan& stock)
            : IndexIVFPQFastScan(stock) {}

    /// Whether searches with these drop repeats.
    bool drops_repeats(idx_t k, const faiss::IVFSearchParameters* params) const;

    /// Of more queries the tables and results do not fit into the caches.
    idx_t queries_at_once(idx_t k) const;

    std::unique_ptr<faiss::FastScanCodeScanner> make_knn_scanner(
            bool is_max,
            idx_t n,
            idx_t k,
            float* distances,
            idx_t* labels,
            const faiss::IDSelector* sel,
            int impl = 0,
            const faiss::FastScanDistancePostProcessing& context = {})
            const override;
};

#else
using UniqueIVFPQFastScan = faiss::IndexIVFPQFastScan;
#endif

} // namespace faiss_flashgmm
