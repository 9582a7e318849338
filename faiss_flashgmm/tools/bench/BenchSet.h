#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <faiss/Index.h>

#include <faiss_flashgmm/compat.h>
#include <faiss_flashgmm/io/VectorFile.h>

namespace faiss_flashgmm {

/// Where a set is, before it is read.
struct BenchFiles {
    std::string name;
    std::string stands_for; ///< the public set it is taken for, or empty
    std::string base;
    std::string queries;
    std::string truth; ///< exact neighbors; empty: to be computed
    std::vector<int64_t> nlists = {1024};
    bool normalize = false; ///< rows and queries get unit length
    faiss::MetricType metric = faiss::METRIC_L2;
};

/// A set of vectors, in memory, with queries and what they should find.
struct BenchSet {
    BenchFiles files;
    Matrix<float> base;
    Matrix<float> queries;
    int k = 0;                    ///< exact neighbors a query, at most 100
    std::vector<idx_t> neighbors; ///< size queries.n * k, nearest first

    const float* rows() const {
        return base.values.data();
    }

    /// The first k neighbors of all queries, size queries.n * k.
    std::vector<idx_t> nearest(int k) const;

    /// Mean share of the first k neighbors among the first k of `width` ids a
    /// query, of the queries from 0.
    double recall(const std::vector<idx_t>& ids, int width, int k) const;
};

/** The files of named sets: sift1m, deep10m, glove100 as data/fetch leaves them
 * in `directory` or `directory`/sets, or else their stand-ins sift400k, deep96
 * and glove200k in `directory`; glove50k and sift10k; "paper" for the first
 * three and "small" for the last two.
 *
 * Throws Error naming what is not there.
 */
std::vector<BenchFiles> find_sets(
        const std::vector<std::string>& names,
        const std::string& directory);

/// Throws Error if files are missing or do not belong together.
BenchSet load_set(const BenchFiles& files);

} // namespace faiss_flashgmm
