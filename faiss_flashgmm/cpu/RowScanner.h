#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <faiss_flashgmm/em/Mixture.h>

namespace faiss_flashgmm {

/// Pairs whose responsibility is below 2^-kKeepBits of the row's best do not
/// enter the M-step; log Z misses at most k 2^-kKeepBits of itself.
constexpr double kKeepBits = 24;

/** The mixture as the inner loops want it, in the log2 domain:
 *
 *     log2 (pi_k N(x; mu_k, s_k)) = level[k] - precision[k] |x - mu_k|^2
 */
struct LogitTables {
    Mixture mixture; ///< conditioned units
    std::vector<double> level;
    std::vector<double> precision;

    /** Upper bound of a logit from an inner product that was computed in fp32
     * in any order of summation:
     *
     *     slope[k] * (x.mu_k - half * |x|^2) + intercept[k]
     *
     * The bound exceeds the logit by at most about
     * (d + 32) 2^-23 precision (|x|^2 + |mu_k|^2).
     */
    std::vector<float> slope;
    std::vector<float> intercept;
    double half = 0.5;

    /// The bounds would overflow fp32: every pair is computed exactly.
    bool exact_only = false;

    void reset(const Mixture& conditioned);
};

/// A component that may matter to a row.
struct Candidate {
    double logit;   ///< log2 domain, conditioned units
    float distance; ///< |x - mu|^2
    uint32_t component;
};

/// The components that matter to one row. `candidates` holds a superset of
/// them, with exact logits, as component tiles go by.
struct RowCandidates {
    double best;   ///< largest logit so far
    double missed; ///< sum of 2^(logit - best) over what is not kept
    std::vector<Candidate> candidates;
    std::vector<double> leaders; ///< min-heap: the m largest logits

    void clear();
    void insert(const Candidate& candidate, int64_t m);
    /// What a logit must exceed to matter.
    double threshold(int64_t m) const;
    /// Drops what the final threshold excludes; sorts by component.
    void finish(int64_t m);
};

/** Finds, for the rows of a tile, the components that matter.
 *
 * A matrix product over tiles of components gives every logit an upper bound;
 * only the pairs whose bound passes are computed exactly, by direct
 * differences. What is kept depends on the exact logits alone, not on how the
 * BLAS rounds. One scanner serves one thread.
 */
class RowScanner {
   public:
    /// Rows of a tile: enough for the matrix product to be efficient, few
    /// enough for its output to stay in the L2 cache.
    static constexpr int64_t kTileRows = 256;
    static constexpr int64_t kTileComponents = 512;

    explicit RowScanner(const LogitTables& tables);

    /** Scans n <= kTileRows rows in conditioned units.
     *
     * @param m     the m largest logits of a row are kept, however small; and
     *              all within kKeepBits of the largest
     */
    void scan(int64_t n, const float* x, int64_t m);

    const RowCandidates& row(int64_t i) const {
        return rows_[i];
    }

   private:
    void offer_tile(
            RowCandidates& row,
            const float* x,
            double norm,
            int64_t first,
            int64_t count,
            float* bounds,
            int64_t m);
    void insert_exact(
            RowCandidates& row,
            const float* x,
            int64_t first,
            size_t count,
            int64_t m);
    void scan_all(RowCandidates& row, const float* x, int64_t m);

    const LogitTables& tables_;
    std::vector<RowCandidates> rows_;
    std::vector<double> norms_;
    std::vector<float> products_;
    std::vector<uint32_t> indices_;
    std::vector<float> distances_;
};

} // namespace faiss_flashgmm
