#pragma once

#include <cstdint>
#include <vector>

#include <faiss/Index.h>

#include <faiss_flashgmm/compat.h>

namespace faiss_flashgmm {

/** How `demand` learns and judges. A row matters only to the queries that have
 * it among their neighbors. Surrogates stand for the queries: training rows,
 * or real queries. Each wants its nearest `neighbors` training rows, and so
 * any row that is no farther.
 *
 * With w falling with how near the row is (1 / (1 + j / 32) at neighbor j), a
 * the lists that a row x is in already, and rank_y(c) the place of list c in
 * the probing order of surrogate y, from 1:
 *
 *     probed(r) = 1 / (1 + (r / probes)^(1 / spread))
 *     gain(x, c) = sum over y that want x of
 *                  w max(0, probed(rank_y(c)) - probed(rank_y(a)))
 *     score(x, c) = gain(x, c) / price(c)^exponent
 *
 * price(c) is how often the surrogates find c among their first `probes`
 * lists, relative to the mean: what an entry in c costs the searches.
 *
 * The more neighbors, the smoother the estimate of who wants x: 128 serve
 * recall@10 better than 10 do (docs/assignment.md).
 */
struct DemandParameters {
    int neighbors = 128;    ///< rows that a surrogate wants
    int probes = 16;        ///< nprobe to serve best
    double spread = 0.5;    ///< > 0; small: serve that nprobe alone
    double exponent = 0.25; ///< >= 0
    int reach = 128;        ///< lists that neighbors are looked for in
    int64_t surrogates = 0; ///< the most to keep; 0: all

    /// Throws faiss::FaissException naming the first field out of range.
    void check() const;
};

/** What `demand` has learned. Keeps the surrogates: d + 64 numbers of 4 bytes
 * each, and a few more.
 */
struct Demand {
    std::vector<float> rows;    ///< surrogates, sorted by their first list
    std::vector<float> radii;   ///< a few for each: the smallest wants most
    std::vector<int32_t> order; ///< their first min(64, nlist) lists
    std::vector<idx_t> begin;   ///< size nlist + 1: first surrogate of a list
    std::vector<float> prices;  ///< size nlist, with the exponent

    bool empty() const {
        return begin.empty();
    }

    /**
     * @param quantizer     trained, one entry a list
     * @param x             training rows, size n * d
     * @param queries       surrogates, size n_queries * d; null: the rows
     */
    void learn(
            const faiss::Index& quantizer,
            const DemandParameters& parameters,
            idx_t n,
            const float* x,
            idx_t n_queries,
            const float* queries);

    /// MultiAssign::extra_lists() of `width` lists a row, which hold -1.
    void extra_lists(
            const faiss::Index& quantizer,
            const DemandParameters& parameters,
            idx_t n,
            const float* x,
            const idx_t* primary,
            int width,
            idx_t* extra,
            float* scores) const;

    /// Throws faiss::FaissException unless there is a demand whose sizes fit
    /// each other and the quantizer.
    void check_sizes(
            const faiss::Index& quantizer,
            const DemandParameters& parameters) const;

    /// The same; reads all of it, for demands from a file.
    void check(
            const faiss::Index& quantizer,
            const DemandParameters& parameters) const;
};

} // namespace faiss_flashgmm
