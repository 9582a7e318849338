#pragma once

#include <cstdint>
#include <vector>

#include <faiss/Index.h>

#include <faiss_flashgmm/compat.h>

namespace faiss_flashgmm {

/// Where neighbors are looked for.
enum class NeighborSearch {
    /// On the GPU if the library was built with CUDA, a device is there that
    /// has room for the rows, and there are enough of them; else on the CPU.
    automatic,
    cpu, ///< in the lists that a row probes first
    gpu, ///< among all rows, on the first CUDA device; throws without one
};

/** How `demand` learns and judges. A row matters only to the queries that have
 * it among their neighbors. Surrogates stand for the queries: the training rows
 * and, if there are any, real queries. Each wants its nearest `neighbors`
 * training rows, and so any row that is no farther.
 *
 * With w falling with how near the row is (1 / (1 + j / 32) at neighbor j) and
 * times `query_weight` for a real query, a the lists that a row x is in
 * already, rank_y(c) the place of list c in the probing order of surrogate y,
 * from 1, and v the sum of all w over the number of training rows:
 *
 *     probed(r) = 1 / (1 + (r / probes)^(1 / spread))
 *     gain(x, c) = sum over y that want x of
 *                  w max(0, probed(rank_y(c)) - probed(rank_y(a))) / v
 *     score(x, c) = gain(x, c) - price_weight price(c)
 *
 * price(c) is how often the surrogates find c among their first `probes`
 * lists, relative to the mean: what an entry in c costs the searches. Copies
 * whose score is not above 0 cost more than they save, and are not made.
 *
 * The more neighbors, the smoother the estimate of who wants x: 128 serve
 * recall@10 better than 10 do (docs/assignment.md).
 */
struct DemandParameters {
    int neighbors = 128;  ///< rows that a surrogate wants
    double recall = 0.95; ///< to serve best, above 0 to 1; learns `probes`
    /// nprobe to serve best. 0: half of the lists in which surrogates find
    /// `recall` of what they want while rows are in one list.
    int probes = 0;
    double spread = 0.4;        ///< > 0; small: serve that nprobe alone
    double price_weight = 0.05; ///< >= 0
    int reach = 0; ///< lists that neighbors are looked for in; 0: 4 sqrt(nlist)
    int64_t surrogates = 0;  ///< the most training rows to keep; 0: all
    double query_weight = 5; ///< > 0; of a real query, in training rows
    /// On the GPU `reach` means nothing: looking at all rows takes no longer.
    /// Files do not keep this.
    NeighborSearch search = NeighborSearch::automatic;

    /// Throws faiss::FaissException naming the first field out of range.
    void check() const;
};

/** What `demand` has learned. Keeps the surrogates: d + 4 probes numbers of 4
 * bytes each, and a few more.
 */
struct Demand {
    std::vector<float> rows;    ///< surrogates, sorted by their first list
    std::vector<float> radii;   ///< a few for each: the smallest wants most
    std::vector<float> weights; ///< of each
    std::vector<int32_t> order; ///< their first min(4 probes, nlist) lists
    std::vector<idx_t> begin;   ///< size nlist + 1: first surrogate of a list
    std::vector<float> prices;  ///< size nlist
    int64_t probes = 0;         ///< the nprobe that is served
    double votes = 0;           ///< v of DemandParameters

    bool empty() const {
        return begin.empty();
    }

    /**
     * @param quantizer     trained, one entry a list
     * @param x             training rows, size n * d
     * @param queries       more surrogates, size n_queries * d, or null
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
