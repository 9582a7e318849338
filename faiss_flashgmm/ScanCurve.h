#pragma once

#include <vector>

#include <faiss/Index.h>

#include <faiss_flashgmm/compat.h>

namespace faiss_flashgmm {

/** What searches find and what they scan, for every nprobe, without an index:
 * from the lists that rows are in and the order in which queries probe lists.
 *
 * Entry i belongs to nprobe = i + 1.
 */
struct ScanCurve {
    std::vector<double> recall;  ///< of the wanted neighbors, 0 to 1
    std::vector<double> scanned; ///< entries a query, copies counted

    /// Entries scanned for a recall, between two nprobe on a logarithmic
    /// scale; infinity if it is not reached.
    double scanned_at(double wanted) const;

    /// nprobe for a recall, as a fraction between two; infinity likewise.
    double probes_at(double wanted) const;
};

/**
 * @param lists         lists of each row, size n * width; -1: none
 * @param queries       size nq * quantizer.d
 * @param neighbors     wanted rows of each query, size nq * k; -1: none
 */
ScanCurve measure_scans(
        const faiss::Index& quantizer,
        idx_t n,
        int width,
        const idx_t* lists,
        idx_t nq,
        const float* queries,
        int k,
        const idx_t* neighbors);

} // namespace faiss_flashgmm
