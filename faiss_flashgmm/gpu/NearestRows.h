#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <faiss_flashgmm/em/Rows.h>
#include <faiss_flashgmm/gpu/CudaOptions.h>

namespace faiss_flashgmm {

/** Compares rows with all rows of a base, on one NVIDIA GPU: exact neighbors.
 *
 * Distances are squared L2 distances, or inner products with the sign changed.
 * They are sums of fp32 differences (products) of the rows as they came, and
 * off by at most (d / 32 + 8) 2^-23 of the distance (of the sum of the
 * products' sizes); which rows are nearest is exact by these distances, the
 * lower number first among equals. Results are the same in every run, and do
 * not depend on how many rows come at once.
 *
 * Rows may be in host memory or in memory of the device, and of any RowType.
 * A row with what is not a number has no neighbors; those of the base are
 * finite. From sm_80 on the tensor cores choose what distances are
 * taken of (docs/kernel.md); with CudaPrecision::reference, and on older
 * devices, all are, which is slow.
 *
 * The base stays on the device: its rows, if they are not there already, and
 * 2 d + 8 bytes each (d rounded up to a multiple of 32). Rows come in blocks,
 * of as many as fit: about 12 KB + 2 d bytes each.
 */
class NearestRows {
   public:
    static constexpr int64_t kMostNeighbors = 1024;
    static constexpr int64_t kMostRows = (int64_t(1) << 32) - 2;

    /** @param options  one device; its memory_limit and precision count
     * @param base      n * d coordinates. Device memory must outlive this
     *
     * Throws Error if an argument is out of range or a number of the
     * base is not finite,
     * OutOfMemory if the base does not fit.
     */
    NearestRows(
            const CudaOptions& options,
            int64_t n,
            int64_t d,
            RowView base,
            bool inner_product);
    ~NearestRows();

    /** The k nearest base rows of each row, ascending.
     *
     * @param k         1 to kMostNeighbors
     * @param self      size n, in host memory: the base row that is the row
     *                  itself, and does not count; < 0: none. null: none at all
     * @param distances output, size n * k, in host or device memory, or null;
     *                  past the last neighbor: infinity
     * @param ids       output like distances; past the last neighbor: -1
     */
    void nearest(
            int64_t n,
            RowView x,
            int64_t k,
            const int64_t* self,
            float* distances,
            int64_t* ids);

    /// A base row that is near another row.
    struct alignas(8) Near {
        uint32_t base;
        float distance;
    };

    /** The base rows that are no farther from a row than their own radius, in
     * the order of the base.
     *
     * @param radii     size of the base, in host memory: distances as above;
     *                  none is not a number
     * @param visit     called with blocks of rows: the first one, and for each
     *                  what is near; they hold during the call
     */
    void within(
            int64_t n,
            RowView x,
            const float* radii,
            const std::function<
                    void(int64_t first, std::span<const std::vector<Near>>)>&
                    visit);

    /// The most bytes of the device that have been in use at once.
    int64_t peak_device_bytes() const;

   private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

} // namespace faiss_flashgmm
