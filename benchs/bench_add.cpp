// What it costs to store vectors in two lists, and to find the components of
// vectors.
//
//     bench_add BASE ROWS NLIST RUNS [CODEC...] [>> RESULTS]
//
// CODEC is the part of a factory string after the lists: Flat, SQ8, PQ64x4fs.
// For each, the first ROWS vectors of BASE are added at once to an empty stock
// index and, by turns, to an IndexIVFMultiAssign with each policy, all over the
// centroids of one mixture (tied, uniform, 10 iterations). A line holds
// vectors a second (wall, median of RUNS), the CPU time of a vector, and the
// median and extremes of CPU time / that of the stock index in the same turn;
// learn_cpu_us is the CPU time, a vector, that the policy adds to train().
//
// Then the same for the 1, 2 and 8 most responsible components of each row, on
// the CPU and, in a build with CUDA, on a GPU, beside the search of the nearest
// centroid in a faiss::IndexFlatL2.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <omp.h>

#include <faiss/IndexFlat.h>
#include <faiss/IndexIVF.h>
#include <faiss/index_factory.h>

#include <faiss_flashgmm/FlashGMMClustering.h>
#include <faiss_flashgmm/cpu/CpuBackend.h>
#include <faiss_flashgmm/index_tree.h>
#include <faiss_flashgmm/io/open_vectors.h>
#include <faiss_flashgmm/make_multi_assign.h>
#include <faiss_flashgmm/stock_index.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Json.h>
#include <faiss_flashgmm/utils/Timer.h>

#if FLASHGMM_BENCH_CUDA
#include <faiss_flashgmm/gpu/CudaBackend.h>
#endif

#include "timing.h"

namespace {

using namespace faiss_flashgmm;

constexpr int kIterations = 10;
constexpr double kInflation = 1.5;

/// One of the ways to do a piece of work that are timed by turns.
struct Way {
    std::string name;
    std::function<void()> prepare; ///< not timed
    std::function<void()> work;
    std::vector<double> wall = {};
    std::vector<double> cpu = {};

    void run() {
        prepare();
        const double cpu_start = cpu_seconds();
        const Timer timer;
        work();
        wall.push_back(timer.seconds());
        cpu.push_back(cpu_seconds() - cpu_start);
    }
};

/// Runs all by turns; the first one is what the others are compared with.
void run_by_turns(std::vector<Way>& ways, int runs) {
    for (int i = 0; i <= runs; i++) {
        for (Way& way : ways) {
            way.run();
        }
    }
    for (Way& way : ways) {
        way.wall.erase(way.wall.begin()); // warms up
        way.cpu.erase(way.cpu.begin());
    }
}

void print(JsonObject row, const Way& way, const Way& reference, int64_t n) {
    std::vector<double> ratios;
    for (size_t i = 0; i < way.cpu.size(); i++) {
        ratios.push_back(way.cpu[i] / reference.cpu[i]);
    }
    const auto [least, most] =
            std::minmax_element(ratios.begin(), ratios.end());
    row.add("rows", n)
            .add("threads", omp_get_max_threads())
            .add("what", way.name)
            .add("rows_per_second", double(n) / median(way.wall))
            .add("cpu_us", median(way.cpu) / double(n) * 1e6)
            .add("cost", median(ratios))
            .add("cost_min", *least)
            .add("cost_max", *most);
    std::printf("%s\n", row.str().c_str());
    std::fflush(stdout);
}

struct Problem {
    std::string name;
    int64_t n = 0;
    int64_t d = 0;
    size_t nlist = 0;
    const float* x = nullptr;
    Mixture mixture;
    faiss::IndexFlatL2 centroids;
};

struct Policy {
    const char* name;
    AssignPolicy policy;
    double max_inflation;
};

constexpr Policy kPolicies[] = {
        {"single", AssignPolicy::single, 0},
        {"posterior, tau = 1/K", AssignPolicy::posterior, 0},
        {"nearest, 1.5", AssignPolicy::nearest, kInflation},
        {"air, 1.5", AssignPolicy::air, kInflation},
        {"soar, 1.5", AssignPolicy::soar, kInflation},
        {"demand, 1.5", AssignPolicy::demand, kInflation},
};

/// A trained index over the centroids of the problem.
std::unique_ptr<faiss::Index> stock_index(
        const Problem& p,
        const std::string& codec) {
    std::unique_ptr<faiss::Index> index(faiss::index_factory(
            int(p.d), format("IVF%zu,%s", p.nlist, codec.c_str()).c_str()));
    faiss::Index& quantizer = *extract_index_ivf(index.get())->quantizer;
    std::vector<float> means(p.nlist * p.d);
    p.centroids.reconstruct_n(0, p.centroids.ntotal, means.data());
    quantizer.add(p.centroids.ntotal, means.data());
    index->train(p.n, p.x);
    return index;
}

struct Adding {
    std::string name;
    std::unique_ptr<faiss::Index> index;
    double learn_cpu_us = 0;
};

Adding prepare(
        const Problem& p,
        const faiss::Index& stock,
        const Policy& policy) {
    MultiAssign assigner;
    assigner.policy = policy.policy;
    assigner.max_inflation = policy.max_inflation;
    Adding adding{policy.name, from_stock(stock, assigner)};
    IVFMultiAssign& part = *multi_assign_parts(*adding.index).front();
    part.set_mixture(p.mixture);
    if (part.assigner.needs_learning(true)) {
        const double start = cpu_seconds();
        part.assigner.learn(p.centroids, p.mixture, p.n, p.x);
        adding.learn_cpu_us = (cpu_seconds() - start) / double(p.n) * 1e6;
    }
    return adding;
}

void time_adds(const Problem& p, const std::string& codec, int runs) {
    std::vector<Adding> all;
    all.push_back({"stock FAISS", stock_index(p, codec)});
    for (const Policy& policy : kPolicies) {
        all.push_back(prepare(p, *all[0].index, policy));
    }
    std::vector<Way> ways;
    for (const Adding& adding : all) {
        faiss::Index* const index = adding.index.get();
        ways.push_back(
                {adding.name,
                 [index] { index->reset(); },
                 [index, &p] { index->add(p.n, p.x); }});
    }
    run_by_turns(ways, runs);
    for (size_t i = 0; i < ways.size(); i++) {
        const auto parts = multi_assign_parts(*all[i].index);
        JsonObject row;
        row.add("bench", "add")
                .add("faiss",
                     format("%d.%d.%d",
                            FAISS_VERSION_MAJOR,
                            FAISS_VERSION_MINOR,
                            FAISS_VERSION_PATCH))
                .add("dataset", p.name)
                .add("d", p.d)
                .add("nlist", p.nlist)
                .add("codec", codec)
                .add("entries_per_vector",
                     parts.empty() ? 1 : parts[0]->entries_per_vector())
                .add("learn_cpu_us", all[i].learn_cpu_us);
        print(row, ways[i], ways[0], p.n);
    }
}

void time_assignments(const Problem& p, int runs) {
    std::vector<std::unique_ptr<Backend>> backends;
    backends.push_back(std::make_unique<CpuBackend>());
#if FLASHGMM_BENCH_CUDA
    if (CudaBackend::why_unavailable().empty()) {
        backends.push_back(std::make_unique<CudaBackend>());
    }
#endif
    for (const int64_t m : {1, 2, 8}) {
        std::vector<int64_t> labels(p.n * m);
        std::vector<float> scores(p.n * m), log_z(p.n);
        const auto nothing = [] {};
        std::vector<Way> ways = {
                {"faiss::IndexFlatL2", nothing, [&] {
                     p.centroids.search(
                             p.n, p.x, m, scores.data(), labels.data());
                 }}};
        for (const auto& backend : backends) {
            ways.push_back({backend->name(), nothing, [&] {
                                assign_to_mixture(
                                        *backend,
                                        p.mixture,
                                        p.n,
                                        p.x,
                                        m,
                                        labels.data(),
                                        scores.data(),
                                        log_z.data());
                            }});
        }
        run_by_turns(ways, runs);
        for (const Way& way : ways) {
            JsonObject row;
            row.add("bench", "assign")
                    .add("dataset", p.name)
                    .add("d", p.d)
                    .add("k", p.nlist)
                    .add("m", m);
            print(row, way, ways[0], p.n);
        }
    }
}

void run(int argc, char** argv) {
    FLASHGMM_THROW_IF_NOT_FMT(
            argc > 4, "usage: bench_add BASE ROWS NLIST RUNS [CODEC...]");
    const std::string path = argv[1];
    const Matrix<float> base = read_vectors(path);
    Problem p;
    p.name = path.substr(path.rfind('/') + 1);
    p.n = std::min<int64_t>(base.n, std::atoll(argv[2]));
    p.d = base.d;
    p.nlist = std::atoll(argv[3]);
    p.x = base.values.data();
    const int runs = std::atoi(argv[4]);
    FLASHGMM_THROW_IF_NOT_FMT(runs > 0, "RUNS = %d", runs);

    faiss::ClusteringParameters cp;
    cp.niter = kIterations;
    FlashGMMClustering clustering(int(p.d), int(p.nlist), cp);
    p.centroids = faiss::IndexFlatL2(p.d);
    clustering.train(p.n, p.x, p.centroids);
    p.mixture = clustering.mixture;

    time_assignments(p, runs);
    for (int i = 5; i < argc; i++) {
        time_adds(p, argv[i], runs);
    }
}

} // namespace

int main(int argc, char** argv) {
    try {
        run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "bench_add: %s\n", error.what());
        return 1;
    }
    return 0;
}
