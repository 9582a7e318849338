#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <faiss_flashgmm/em/Rows.h>

namespace faiss_flashgmm {

/** Count, mean and variance of rows that come in chunks, and the check that
 * they are fit to train on.
 *
 * Each column is summed in the order of the rows: chunks and threads change no
 * bit. Sums are taken about a pivot, so that a common offset cancels.
 */
class RowMoments {
   public:
    /// @param pivot    near the rows, size d; the same for all peers
    explicit RowMoments(std::vector<double> pivot);

    /** Adds a chunk whose first row has the number `first`.
     *
     * @return  what is wrong with the first row that is not finite or whose
     *          weight is not finite and >= 0; empty if all is well
     */
    std::string add(int64_t first, const Rows& rows);

    /// All that adds up over chunks and peers: sums of w (x - pivot) (d),
    /// of w (x - pivot)^2 (d), rows, rows of positive weight, weight.
    std::span<double> flat() {
        return flat_;
    }
    const std::vector<double>& pivot() const {
        return pivot_;
    }

    /// What add() says of a row.
    static std::string bad_weight(int64_t row, double weight);
    static std::string bad_value(int64_t row, int64_t column, double value);

    double rows() const {
        return flat_[2 * d_];
    }
    /// Rows of positive weight.
    double weighted_rows() const {
        return flat_[2 * d_ + 1];
    }
    std::vector<double> mean() const;
    /// Mean over the columns.
    double variance() const;

   private:
    double weight() const {
        return flat_[2 * d_ + 2];
    }

    bool add_sums(int64_t n, const float* x, const float* weights);

    int64_t d_;
    std::vector<double> pivot_;
    std::vector<double> flat_;
};

} // namespace faiss_flashgmm
