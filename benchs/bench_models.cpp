// What each variance and weight model of the mixture is worth to an IVF index:
// the vectors that k-means with one list a vector scans for a recall@10, over
// those that the mixture scans for the same. Above 1, the mixture scans fewer.
//
//     bench_models BASE QUERIES NLIST ROWS [RESULTS.jsonl]
//
// The first ROWS rows of BASE are trained on and searched; the neighbours of up
// to 1,000 queries are found by brute force. 25 iterations on all rows each.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <faiss/IndexFlat.h>

#include <faiss_flashgmm/IndexIVFMultiAssign.h>
#include <faiss_flashgmm/io/open_vectors.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Json.h>

namespace {

using namespace faiss_flashgmm;

constexpr int kNeighbors = 10;
constexpr int kIterations = 25;
constexpr double kRecalls[] = {0.8, 0.9, 0.95, 0.99};

struct Problem {
    std::string name;
    Matrix<float> base;
    Matrix<float> queries;
    int64_t n = 0;
    int64_t nq = 0;
    size_t nlist = 0;
    std::vector<idx_t> neighbors; ///< size nq * kNeighbors
};

struct Point {
    double recall;
    double scanned; ///< vectors a query, copies counted
};

Problem load(int argc, char** argv) {
    FLASHGMM_THROW_IF_NOT_FMT(
            argc == 5 || argc == 6,
            "usage: bench_models BASE QUERIES NLIST ROWS [RESULTS.jsonl]");
    Problem p;
    p.name = argv[1];
    p.name = p.name.substr(p.name.rfind('/') + 1);
    p.base = read_vectors(argv[1]);
    p.queries = read_vectors(argv[2]);
    p.nlist = size_t(std::atoll(argv[3]));
    p.n = std::min<int64_t>(p.base.n, std::atoll(argv[4]));
    p.nq = std::min<int64_t>(p.queries.n, 1000);
    FLASHGMM_THROW_IF_NOT_FMT(
            p.nlist > 0 && p.n >= int64_t(p.nlist),
            "%ld rows for %zu lists",
            long(p.n),
            p.nlist);
    faiss::IndexFlatL2 exact(p.base.d);
    exact.add(p.n, p.base.values.data());
    std::vector<float> distances(p.nq * kNeighbors);
    p.neighbors.resize(p.nq * kNeighbors);
    exact.search(
            p.nq,
            p.queries.values.data(),
            kNeighbors,
            distances.data(),
            p.neighbors.data());
    return p;
}

double recall_of(const Problem& p, const std::vector<idx_t>& found) {
    int64_t hits = 0;
    for (int64_t q = 0; q < p.nq; q++) {
        const auto wanted = p.neighbors.begin() + q * kNeighbors;
        for (int j = 0; j < kNeighbors; j++) {
            hits += std::count(
                    wanted, wanted + kNeighbors, found[q * kNeighbors + j]);
        }
    }
    return double(hits) / double(p.nq * kNeighbors);
}

std::vector<Point> curve(const Problem& p, faiss::IndexIVF& index) {
    std::vector<Point> points;
    std::vector<float> distances(p.nq * kNeighbors);
    std::vector<idx_t> found(p.nq * kNeighbors);
    for (size_t nprobe = 1; nprobe <= p.nlist;
         nprobe = std::max(nprobe + 1, nprobe * 5 / 4)) {
        index.nprobe = nprobe;
        faiss::indexIVF_stats.reset();
        index.search(
                p.nq,
                p.queries.values.data(),
                kNeighbors,
                distances.data(),
                found.data());
        points.push_back(
                {recall_of(p, found),
                 double(faiss::indexIVF_stats.ndis) / double(p.nq)});
        if (points.back().recall > 0.995) {
            break;
        }
    }
    return points;
}

/// Vectors scanned for a recall, between the points on a logarithmic scale;
/// NaN if it is not reached.
double scanned_for(const std::vector<Point>& points, double recall) {
    for (size_t i = 1; i < points.size(); i++) {
        if (points[i].recall >= recall) {
            const Point& a = points[i - 1];
            const Point& b = points[i];
            const double t = (recall - a.recall) / (b.recall - a.recall);
            return a.scanned * std::pow(b.scanned / a.scanned, t);
        }
    }
    return NAN;
}

void report(
        const Problem& p,
        const std::string& model,
        const std::string& policy,
        double entries_per_vector,
        const std::vector<Point>& points,
        const std::vector<Point>& reference,
        std::ofstream& results) {
    std::printf(
            "%-24s %-9s %5.2f",
            model.c_str(),
            policy.c_str(),
            entries_per_vector);
    JsonObject row;
    row.add("dataset", p.name)
            .add("n", p.n)
            .add("d", p.base.d)
            .add("nlist", p.nlist)
            .add("model", model)
            .add("policy", policy)
            .add("entries_per_vector", entries_per_vector);
    for (const double recall : kRecalls) {
        const double gain =
                scanned_for(reference, recall) / scanned_for(points, recall);
        std::printf("  %5.3f", gain);
        row.add(format("scan_gain_r%.0f", 100 * recall), gain);
    }
    std::printf("\n");
    std::fflush(stdout);
    results << row.str() << "\n";
}

void run(const Problem& p, std::ofstream& results) {
    faiss::ClusteringParameters cp;
    cp.niter = kIterations;
    cp.max_points_per_centroid = int(p.n / int64_t(p.nlist) + 1);
    cp.min_points_per_centroid = 1;
    const float* x = p.base.values.data();
    std::printf(
            "%s: %ld rows, %zu lists\n%-24s %-9s %5s  R80    R90    R95    "
            "R99\n",
            p.name.c_str(),
            long(p.n),
            p.nlist,
            "model",
            "policy",
            "infl");

    faiss::IndexFlatL2 centroids(p.base.d);
    faiss::IndexIVFFlat kmeans(&centroids, p.base.d, p.nlist);
    kmeans.cp = cp;
    kmeans.train(p.n, x);
    kmeans.add(p.n, x);
    const std::vector<Point> reference = curve(p, kmeans);
    report(p, "k-means", "single", 1, reference, reference, results);

    for (const auto variance :
         {VarianceModel::per_component, VarianceModel::tied}) {
        for (const auto weights : {WeightModel::free, WeightModel::uniform}) {
            faiss::IndexFlatL2 means(p.base.d);
            IndexIVFFlatMultiAssign index(&means, p.base.d, p.nlist);
            index.cp = cp;
            index.gmm.variance = variance;
            index.gmm.weights = weights;
            index.train(p.n, x);
            const std::string model =
                    std::string(
                            variance == VarianceModel::tied ? "tied"
                                                            : "per_component") +
                    (weights == WeightModel::free ? ", free" : ", uniform");
            for (const auto policy :
                 {AssignPolicy::single, AssignPolicy::posterior}) {
                index.reset();
                index.assigner.policy = policy;
                index.add(p.n, x);
                report(p,
                       model,
                       policy == AssignPolicy::single ? "single" : "posterior",
                       index.entries_per_vector(),
                       curve(p, index),
                       reference,
                       results);
            }
        }
    }
}

} // namespace

int main(int argc, char** argv) {
    try {
        const Problem problem = load(argc, argv);
        std::ofstream results;
        if (argc == 6) {
            results.open(argv[5], std::ios::app);
            FLASHGMM_THROW_IF_NOT_FMT(
                    results.good(), "cannot write %s", argv[5]);
        }
        run(problem, results);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "bench_models: %s\n", error.what());
        return 1;
    }
    return 0;
}
