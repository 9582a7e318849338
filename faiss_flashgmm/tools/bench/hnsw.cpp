#include <faiss_flashgmm/tools/bench/searches.h>

#include <algorithm>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

// hnswlib chooses its distances when it is compiled: let it have AVX2, but
// nothing of the standard library that the rest of the program shares.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <atomic>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <list>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <unordered_set>
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#include <hnswlib/hnswlib.h>
#pragma GCC pop_options
#define FLASHGMM_HNSW_NEEDS_AVX2 1
#else
#include <hnswlib/hnswlib.h>
#endif

#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/ParallelGuard.h>
#include <faiss_flashgmm/utils/Timer.h>

namespace faiss_flashgmm {

namespace {

constexpr size_t kLinks = 16;        ///< M of the graph
constexpr size_t kBuildEffort = 200; ///< ef while it is built

using Graph = hnswlib::HierarchicalNSW<float>;

int64_t stored_bytes(const Graph& graph) {
    int64_t bytes = int64_t(graph.cur_element_count) *
            int64_t(graph.size_data_per_element_);
    for (size_t i = 0; i < graph.cur_element_count; i++) {
        bytes += int64_t(graph.element_levels_[i]) *
                int64_t(graph.size_links_per_element_);
    }
    return bytes;
}

/// Runs work(i) for all i below n on all threads.
template <class Work>
void for_all(int64_t n, const Work& work) {
    ParallelGuard guard;
#pragma omp parallel for schedule(dynamic, 64)
    for (int64_t i = 0; i < n; i++) {
        guard.run([&] { work(i); });
    }
    guard.rethrow();
}

} // namespace

bool has_hnsw() {
#if FLASHGMM_HNSW_NEEDS_AVX2
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return true;
#endif
}

void bench_hnsw(
        const BenchCase& bench,
        const SearchTiming& timing,
        BenchRows& rows) {
    const BenchSet& set = bench.set;
    const std::string policy =
            format("M=%zu,efConstruction=%zu", kLinks, kBuildEffort);
    // A graph has no lists.
    JsonObject row =
            BenchCase{set, 0, bench.seed}.key("hnswlib", policy, "hnsw");
    if (!has_hnsw() || rows.has(row)) {
        return;
    }
    std::unique_ptr<hnswlib::SpaceInterface<float>> space;
    if (set.files.metric == faiss::METRIC_INNER_PRODUCT) {
        space = std::make_unique<hnswlib::InnerProductSpace>(set.base.d);
    } else {
        space = std::make_unique<hnswlib::L2Space>(set.base.d);
    }
    const Timer timer;
    Graph graph(
            space.get(), set.base.n, kLinks, kBuildEffort, size_t(bench.seed));
    graph.addPoint(set.base.row(0), 0);
    for_all(set.base.n - 1, [&](int64_t i) {
        graph.addPoint(set.base.row(i + 1), size_t(i + 1));
    });
    const double seconds = timer.seconds();

    std::vector<Searcher> searchers(1);
    searchers[0].set_effort = [&](int64_t ef) { graph.setEf(ef); };
    searchers[0].search = [&](int64_t nq, const float* x, int k, idx_t* ids) {
        for_all(nq, [&](int64_t q) {
            auto found = graph.searchKnn(x + q * set.base.d, k);
            std::fill_n(ids + q * k, k, idx_t(-1));
            for (; !found.empty(); found.pop()) { // the farthest first
                ids[q * k + int64_t(found.size()) - 1] =
                        idx_t(found.top().second);
            }
        });
    };
    time_searches(set, {10, 20, 40, 80, 160, 320, 640}, timing, searchers);
    row.add("stands_for", set.files.stands_for)
            .add("n", set.base.n)
            .add("d", set.base.d)
            .add("queries", set.queries.n)
            .add("bytes", stored_bytes(graph))
            .add("add_seconds", rounded(seconds))
            .add("nprobe", searchers[0].efforts);
    searchers[0].add_to(row);
    rows.add(
            row,
            format("%-10s %5s %4d  %-22s %-26s %-16s ",
                   set.files.name.c_str(),
                   "",
                   bench.seed,
                   "hnswlib",
                   policy.c_str(),
                   "hnsw") +
                    summary(searchers[0]));
}

} // namespace faiss_flashgmm
