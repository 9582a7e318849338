#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <faiss/Index.h>

#include <faiss_flashgmm/Demand.h>
#include <faiss_flashgmm/compat.h>

namespace faiss_flashgmm {

/// A base row that is near another row.
struct Near {
    idx_t base;
    float distance; ///< squared L2, or the inner product with its sign changed
};

/** Finds rows of a base near others.
 *
 * Results come in blocks of consecutive rows, from several threads at once;
 * they hold during the call, and depend on nothing but the arguments.
 */
class NearRows {
   public:
    virtual ~NearRows() = default;

    using VisitDistances = std::function<
            void(idx_t first, std::span<const std::span<const float>> rows)>;
    /** The distances of each row to the base rows nearest to it, ascending; k
     * of them, if so many are found.
     *
     * @param x     size n * d
     * @param self  size n: the base row that is the row itself, and does not
     *              count; < 0: none. null: none of any row
     */
    virtual void nearest(
            idx_t n,
            const float* x,
            int k,
            const idx_t* self,
            const VisitDistances& visit) = 0;

    using VisitNear = std::function<
            void(idx_t first, std::span<const std::span<const Near>> rows)>;
    /** The base rows that are no farther from a row than their own radius, in
     * the order of the base.
     *
     * @param x      size n * d
     * @param radii  one for each base row: a distance, as in Near
     */
    virtual void within(
            idx_t n,
            const float* x,
            const float* radii,
            const VisitNear& visit) = 0;
};

/// Sorts row numbers by list; rows without one (-1) are left out.
/// @param lists    of row i: lists[i * stride]
/// @param begin    output, size nlist + 1: where a list starts
std::vector<idx_t> sort_by_list(
        idx_t n,
        const idx_t* lists,
        idx_t stride,
        idx_t nlist,
        std::vector<idx_t>& begin);

/// Rows by number.
std::vector<float> gather_rows(
        const std::vector<idx_t>& ids,
        const float* x,
        idx_t d);

/// Where and how the rows near others are looked for.
struct NearRowsOptions {
    NeighborSearch search = NeighborSearch::automatic;
    idx_t reach = 1; ///< lists that a row probes, on the CPU
    idx_t rows = 0;  ///< that will be asked about, about
    idx_t k = 1;     ///< neighbors that will be asked for
};

/** Compares a row with what is in the lists that it probes first, or, on the
 * GPU, with all.
 *
 * @param base      list by list; must outlive the result, as must begin
 * @param begin     size nlist + 1: where a list starts
 */
std::unique_ptr<NearRows> near_listed_rows(
        const faiss::Index& quantizer,
        const NearRowsOptions& options,
        const float* base,
        const idx_t* begin);

/// The same for base rows in any order, which are copied.
std::unique_ptr<NearRows> near_rows(
        const faiss::Index& quantizer,
        const NearRowsOptions& options,
        idx_t n,
        const float* x);

/** Compares with all rows, on the GPU.
 *
 * Null if search is automatic and the CPU is to do it. Throws
 * faiss::FaissException if search is gpu and that is not possible.
 */
std::unique_ptr<NearRows> near_rows_on_gpu(
        const faiss::Index& quantizer,
        const NearRowsOptions& options,
        idx_t n,
        const float* x);

/// The first `size` lists that rows probe; where the GPU is to do it and the
/// quantizer is an IndexFlat, there.
std::vector<idx_t> probing_order(
        const faiss::Index& quantizer,
        NeighborSearch search,
        idx_t size,
        idx_t n,
        const float* x);

/// The same on the GPU; false if the CPU is to do it.
bool probing_order_on_gpu(
        const faiss::Index& quantizer,
        NeighborSearch search,
        idx_t size,
        idx_t n,
        const float* x,
        idx_t* order);

} // namespace faiss_flashgmm
