#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <faiss_flashgmm/tools/bench/BenchSet.h>
#include <faiss_flashgmm/utils/Json.h>

namespace faiss_flashgmm {

/// How searches are timed.
struct SearchTiming {
    int runs = 3;          ///< by turns; the median counts
    int64_t queries = 500; ///< that one thread searches; all threads: all
    int64_t max_nprobe = 128;
};

/// Something that searches, and what was measured of it.
struct Searcher {
    /// Sets nprobe, or what takes its place.
    std::function<void(int64_t effort)> set_effort;
    /// ids: size nq * k.
    std::function<void(int64_t nq, const float* x, int k, idx_t* ids)> search;

    std::vector<int64_t> efforts = {};
    std::vector<double> recall_1 = {};
    std::vector<double> recall_10 = {};
    std::vector<double> recall_100 = {}; ///< empty: too few known neighbors
    std::vector<double> queries_per_second_1 = {}; ///< of one thread, k = 10
    std::vector<double> queries_per_second = {};   ///< of all threads

    void add_to(JsonObject& row) const;
};

/// Measures all searchers at each effort, by turns.
void time_searches(
        const BenchSet& set,
        const std::vector<int64_t>& efforts,
        const SearchTiming& timing,
        std::vector<Searcher>& searchers);

/// For recall@10 = 0.9, from `efforts` and what was measured, as text.
std::string summary(const Searcher& searcher);

} // namespace faiss_flashgmm
