#include <faiss_flashgmm/tools/bench/timing.h>

#include <algorithm>
#include <optional>

#include <omp.h>

#include <faiss_flashgmm/cpu/BlasThreadScope.h>
#include <faiss_flashgmm/tools/bench/BenchRows.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Timer.h>

namespace faiss_flashgmm {

namespace {

constexpr int kNeighbors = 10;

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

/// Queries a second of each searcher on so many threads.
std::vector<double> rates(
        const BenchSet& set,
        int64_t nq,
        int threads,
        int runs,
        const std::vector<Searcher>& searchers) {
    const int all = omp_get_max_threads();
    omp_set_num_threads(threads);
    std::optional<BlasThreadScope> one_thread;
    if (threads == 1) {
        one_thread.emplace(); // OpenBLAS has threads of its own
    }
    std::vector<idx_t> ids(nq * kNeighbors);
    std::vector<std::vector<double>> seconds(searchers.size());
    for (int run = 0; run <= runs; run++) {
        for (size_t i = 0; i < searchers.size(); i++) {
            const Timer timer;
            searchers[i].search(
                    nq, set.queries.values.data(), kNeighbors, ids.data());
            if (run > 0) { // the first one warms up
                seconds[i].push_back(timer.seconds());
            }
        }
    }
    omp_set_num_threads(all);
    std::vector<double> rates;
    for (const std::vector<double>& times : seconds) {
        rates.push_back(rounded(double(nq) / median(times)));
    }
    return rates;
}

} // namespace

void Searcher::add_to(JsonObject& row) const {
    row.add("recall_1", recall_1).add("recall_10", recall_10);
    if (!recall_100.empty()) {
        row.add("recall_100", recall_100);
    }
    row.add("queries_per_second_1", queries_per_second_1)
            .add("queries_per_second", queries_per_second);
}

void time_searches(
        const BenchSet& set,
        const std::vector<int64_t>& efforts,
        const SearchTiming& timing,
        std::vector<Searcher>& searchers) {
    const int64_t nq = set.queries.n;
    for (const int64_t effort : efforts) {
        for (Searcher& searcher : searchers) {
            searcher.set_effort(effort);
            searcher.efforts.push_back(effort);
            const auto found = [&](int k) {
                std::vector<idx_t> ids(nq * k);
                searcher.search(nq, set.queries.values.data(), k, ids.data());
                return ids;
            };
            const std::vector<idx_t> ids = found(kNeighbors);
            searcher.recall_1.push_back(
                    rounded(set.recall(ids, kNeighbors, 1)));
            searcher.recall_10.push_back(
                    rounded(set.recall(ids, kNeighbors, kNeighbors)));
            if (set.k >= 100) {
                searcher.recall_100.push_back(
                        rounded(set.recall(found(100), 100, 100)));
            }
        }
        const std::vector<double> one = rates(
                set, std::min(nq, timing.queries), 1, timing.runs, searchers);
        const std::vector<double> all =
                rates(set, nq, omp_get_max_threads(), timing.runs, searchers);
        for (size_t i = 0; i < searchers.size(); i++) {
            searchers[i].queries_per_second_1.push_back(one[i]);
            searchers[i].queries_per_second.push_back(all[i]);
        }
    }
}

std::string summary(const Searcher& searcher) {
    constexpr double kRecall = 0.9;
    const std::vector<double>& recall = searcher.recall_10;
    const size_t i = std::find_if(
                             recall.begin(),
                             recall.end(),
                             [](double r) { return r >= kRecall; }) -
            recall.begin();
    if (i == recall.size()) {
        return format("recall@10 %.3f at most", recall.back());
    }
    return format(
            "recall@10 %.3f at %lld: %.0f queries/s on a thread, %.0f on all",
            recall[i],
            static_cast<long long>(searcher.efforts[i]),
            searcher.queries_per_second_1[i],
            searcher.queries_per_second[i]);
}

} // namespace faiss_flashgmm
