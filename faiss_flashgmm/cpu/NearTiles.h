#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace faiss_flashgmm {

/// Rows sorted by the inverted list they are in. Owns nothing.
struct ListedRows {
    int64_t d = 0;
    int64_t nlist = 0;
    const float* rows = nullptr;      ///< size begin[nlist] * d, list by list
    const int64_t* begin = nullptr;   ///< size nlist + 1: first row of a list
    const float* centroids = nullptr; ///< size nlist * d
    bool inner_product = false;       ///< else L2
};

/// Distances between some rows and some of those in one list.
struct NearTile {
    int64_t n_rows = 0;
    const int64_t* rows = nullptr; ///< size n_rows: which rows
    int64_t first_base = 0;        ///< position in ListedRows
    int64_t n_base = 0;
    /// Size n_rows * n_base: squared L2 distances, or inner products with the
    /// sign changed.
    const float* distances = nullptr;
};

/** Compares rows with all rows in the lists that they probe, by matrix
 * products of residuals: a list at a time, for all rows that probe it.
 *
 * One object a thread, with the BLAS kept to one thread.
 */
class NearTiles {
   public:
    explicit NearTiles(const ListedRows& base) : base_(base) {}

    /**
     * @param n         up to a few thousand rows
     * @param x         size n * d
     * @param probes    lists a row probes, size n * n_probes; < 0: none
     * @param visit     called for each tile, in an order that depends on
     *                  nothing but the arguments
     */
    void run(
            int64_t n,
            const float* x,
            int64_t n_probes,
            const int64_t* probes,
            const std::function<void(const NearTile&)>& visit);

   private:
    ListedRows base_;
    std::vector<int64_t> begin_, members_; ///< by list: the rows that probe it
    std::vector<float> rows_, row_norms_;  ///< of a tile, as residuals
    std::vector<float> base_rows_, base_norms_;
    std::vector<float> distances_;
};

} // namespace faiss_flashgmm
