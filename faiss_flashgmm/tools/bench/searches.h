#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <faiss_flashgmm/MultiAssign.h>
#include <faiss_flashgmm/tools/bench/BenchCase.h>
#include <faiss_flashgmm/tools/bench/BenchRows.h>
#include <faiss_flashgmm/tools/bench/Centroids.h>
#include <faiss_flashgmm/tools/bench/timing.h>

namespace faiss_flashgmm {

/// What is built and searched.
struct SearchedIndex {
    const Centroids* centroids;
    std::string policy; ///< as parse_policy() reads it
    std::string codec;  ///< the part of a factory string after the lists
};

/// A policy that has learned the rows of a set over some centroids.
struct LearnedPolicy {
    MultiAssign assigner;
    double seconds = 0;
};

/// By centroids and what is learned: all codecs share it.
using LearnedPolicies =
        std::map<std::pair<const Centroids*, std::string>, LearnedPolicy>;

/** Builds indexes and searches them by turns.
 *
 * A row holds, for each of some nprobe, recall_1, recall_10, recall_100 and
 * queries a second of one thread and of all (k = 10); bytes of the index as
 * FAISS stores it; and the seconds of fit, learning, codec and add. With RFlat,
 * 10 k candidates are compared exactly.
 */
void bench_searches(
        const BenchCase& bench,
        const std::vector<SearchedIndex>& indexes,
        const SearchTiming& timing,
        LearnedPolicies& learned,
        BenchRows& rows);

/// Whether this program was built with hnswlib.
bool has_hnsw();

/// The same for a graph of hnswlib over the rows: codec "hnsw", with ef in the
/// place of nprobe. Nothing without hnswlib.
void bench_hnsw(
        const BenchCase& bench,
        const SearchTiming& timing,
        BenchRows& rows);

} // namespace faiss_flashgmm
