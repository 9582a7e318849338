#pragma once

#include <cstdint>
#include <vector>

#include <faiss/Index.h>

#include <faiss_flashgmm/compat.h>

namespace faiss_flashgmm {

/** What a recall costs, between two measurements on a logarithmic scale of the
 * cost, where it is reached first: the first cost if that suffices, infinity if
 * none does. Both have the same size.
 */
double cost_of_recall(
        const std::vector<double>& recall,
        const std::vector<double>& cost,
        double wanted);

/** What searches find and what they scan, for every nprobe, without an index:
 * from the lists that rows are in and the order in which queries probe lists.
 *
 * Entry i belongs to nprobe = i + 1.
 */
struct ScanCurve {
    std::vector<double> recall;  ///< of the wanted neighbors, 0 to 1
    std::vector<double> scanned; ///< entries a query, copies counted

    /// Entries scanned for a recall.
    double scanned_at(double wanted) const {
        return cost_of_recall(recall, scanned, wanted);
    }

    /// nprobe for a recall, as a fraction between two; infinity if it is not
    /// reached.
    double probes_at(double wanted) const;
};

/// In which order queries probe lists.
struct ProbingOrder {
    idx_t nq = 0;
    idx_t nlist = 0;
    /// For each query, the place of each list from 0, nlist if it is never
    /// probed; size nq * nlist.
    std::vector<int32_t> places;

    ProbingOrder(const faiss::Index& quantizer, idx_t nq, const float* queries);
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

/// The same for queries whose probing order is known.
ScanCurve measure_scans(
        const ProbingOrder& order,
        idx_t n,
        int width,
        const idx_t* lists,
        int k,
        const idx_t* neighbors);

/// Different rows that a query scans, for each nprobe: a row counts once,
/// however many of its lists are probed.
std::vector<double> distinct_scanned(
        const ProbingOrder& order,
        idx_t n,
        int width,
        const idx_t* lists);

} // namespace faiss_flashgmm
