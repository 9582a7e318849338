// What each policy of a multi-assign index is worth: the vectors that k-means
// with one list a vector scans for a recall@10, over those that the policy
// scans for the same, copies counted. Above 1, the policy scans fewer.
//
//     bench_assignment BASE QUERIES NLIST[,NLIST...] [SEEDS [RESULTS.jsonl
//                      [k-means,free,tied]]]
//
// All rows of BASE are trained on and stored, 25 iterations each; the neighbors
// of all queries are found by brute force. Nothing but the recall uses the
// queries. Seeds are 1, 2, ... SEEDS (default 3). The last argument names the
// centroids: of k-means, of a mixture with a variance and a weight for each
// component (free), of one with the same for all (tied).

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <faiss/Clustering.h>
#include <faiss/IndexFlat.h>

#include <faiss_flashgmm/FlashGMMClustering.h>
#include <faiss_flashgmm/MultiAssign.h>
#include <faiss_flashgmm/ScanCurve.h>
#include <faiss_flashgmm/io/open_vectors.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Json.h>
#include <faiss_flashgmm/utils/Timer.h>

namespace {

using namespace faiss_flashgmm;

constexpr int kNeighbors = 10;
constexpr int kIterations = 25;
constexpr int kEntries = 3; ///< the most lists a vector here
constexpr double kRecalls[] = {0.8, 0.9, 0.95, 0.99};

struct Problem {
    std::string name;
    Matrix<float> base;
    Matrix<float> queries;
    std::vector<idx_t> neighbors; ///< size queries.n * kNeighbors

    const float* rows() const {
        return base.values.data();
    }
};

Problem load(const std::string& base, const std::string& queries) {
    Problem p;
    p.name = base.substr(base.rfind('/') + 1);
    p.base = read_vectors(base);
    p.queries = read_vectors(queries);
    faiss::IndexFlatL2 exact(p.base.d);
    exact.add(p.base.n, p.rows());
    std::vector<float> distances(p.queries.n * kNeighbors);
    p.neighbors.resize(p.queries.n * kNeighbors);
    exact.search(
            p.queries.n,
            p.queries.values.data(),
            kNeighbors,
            distances.data(),
            p.neighbors.data());
    return p;
}

/// Centroids, and the mixture that belongs to them, if any.
struct Lists {
    std::string name;
    faiss::IndexFlatL2 quantizer;
    Mixture mixture;
    std::vector<idx_t> primary;
};

faiss::ClusteringParameters parameters(
        const Problem& p,
        idx_t nlist,
        int seed) {
    faiss::ClusteringParameters cp;
    cp.niter = kIterations;
    cp.seed = seed;
    cp.max_points_per_centroid = int(p.base.n / nlist + 1);
    cp.min_points_per_centroid = 1;
    return cp;
}

Lists fit_kmeans(const Problem& p, idx_t nlist, int seed) {
    Lists lists{"k-means", faiss::IndexFlatL2(p.base.d), {}, {}};
    faiss::Clustering(int(p.base.d), int(nlist), parameters(p, nlist, seed))
            .train(p.base.n, p.rows(), lists.quantizer);
    return lists;
}

Lists fit_mixture(
        const Problem& p,
        idx_t nlist,
        int seed,
        VarianceModel variance,
        WeightModel weights) {
    Lists lists{
            variance == VarianceModel::tied ? "tied, uniform"
                                            : "per_component, free",
            faiss::IndexFlatL2(p.base.d),
            {},
            {}};
    FlashGMMOptions options;
    options.variance = variance;
    options.weights = weights;
    FlashGMMClustering clustering(
            int(p.base.d), int(nlist), parameters(p, nlist, seed), options);
    clustering.train(p.base.n, p.rows(), lists.quantizer);
    lists.mixture = std::move(clustering.mixture);
    return lists;
}

class Reporter {
   public:
    Reporter(const Problem& p, std::ofstream& results)
            : p_(p), results_(results) {}

    void start(idx_t nlist, int seed, const ScanCurve& reference) {
        nlist_ = nlist;
        seed_ = seed;
        reference_ = reference;
    }

    void report(
            const Lists& lists,
            const std::string& policy,
            const std::vector<idx_t>& stored,
            int width) {
        const ScanCurve curve = measure_scans(
                lists.quantizer,
                p_.base.n,
                width,
                stored.data(),
                p_.queries.n,
                p_.queries.values.data(),
                kNeighbors,
                p_.neighbors.data());
        const double entries =
                double(stored.size() -
                       std::count(stored.begin(), stored.end(), idx_t(-1))) /
                double(p_.base.n);
        JsonObject row;
        row.add("dataset", p_.name)
                .add("n", p_.base.n)
                .add("d", p_.base.d)
                .add("nlist", nlist_)
                .add("centroids", lists.name)
                .add("policy", policy)
                .add("seed", seed_)
                .add("entries_per_vector", entries);
        std::printf(
                "%5ld %d %-20s %-26s %5.3f",
                long(nlist_),
                seed_,
                lists.name.c_str(),
                policy.c_str(),
                entries);
        for (double recall : kRecalls) {
            const double gain =
                    reference_.scanned_at(recall) / curve.scanned_at(recall);
            row.add(format("scan_gain_r%.0f", 100 * recall), gain);
            std::printf("  %5.3f", gain);
        }
        row.add("nprobe_r95", curve.probes_at(0.95));
        std::printf("  %6.1f\n", curve.probes_at(0.95));
        std::fflush(stdout);
        results_ << row.str() << "\n" << std::flush;
    }

   private:
    const Problem& p_;
    std::ofstream& results_;
    idx_t nlist_ = 0;
    int seed_ = 0;
    ScanCurve reference_;
};

/// What a policy proposes, before any limit.
struct Proposal {
    std::vector<idx_t> extra;
    std::vector<float> scores;
};

/// The primary list and the first `width - 1` proposals, within the limit.
std::vector<idx_t> stored_lists(
        const Lists& lists,
        const Proposal& proposal,
        int proposed,
        int width,
        double max_inflation) {
    const idx_t n = lists.primary.size();
    std::vector<idx_t> extra(n * (width - 1)), stored(n * width);
    std::vector<float> scores(extra.size());
    for (idx_t i = 0; i < n; i++) {
        std::copy_n(
                &proposal.extra[i * proposed],
                width - 1,
                extra.data() + i * (width - 1));
        std::copy_n(
                &proposal.scores[i * proposed],
                width - 1,
                scores.data() + i * (width - 1));
    }
    if (max_inflation > 0) {
        keep_best(
                max_inflation,
                n,
                lists.primary.data(),
                width - 1,
                scores.data(),
                extra.data());
    }
    for (idx_t i = 0; i < n; i++) {
        stored[i * width] = lists.primary[i];
        std::copy_n(
                extra.data() + i * (width - 1),
                width - 1,
                stored.data() + i * width + 1);
    }
    return stored;
}

Proposal propose(const Problem& p, const Lists& lists, MultiAssign assigner) {
    // One list more at each time is the best one more, so those of three
    // entries begin with those of two.
    assigner.max_entries = kEntries;
    assigner.learn(lists.quantizer, lists.mixture, p.base.n, p.rows());
    Proposal proposal;
    proposal.extra.resize(p.base.n * (kEntries - 1));
    proposal.scores.resize(proposal.extra.size());
    assigner.extra_lists(
            lists.quantizer,
            lists.mixture,
            p.base.n,
            p.rows(),
            lists.primary.data(),
            proposal.extra.data(),
            proposal.scores.data());
    return proposal;
}

void report_policies(const Problem& p, const Lists& lists, Reporter& reporter) {
    struct Variant {
        const char* name;
        AssignPolicy policy;
        double max_inflation;
        int width;
        bool rng_rule = false;
    };
    const Variant variants[] = {
            {"posterior, tau = 1/K", AssignPolicy::posterior, 0, 2},
            {"posterior, 1.5", AssignPolicy::posterior, 1.5, 2},
            {"nearest, 1.5", AssignPolicy::nearest, 1.5, 2},
            {"nearest, RNG, 1.5", AssignPolicy::nearest, 1.5, 2, true},
            {"air, all", AssignPolicy::air, 0, 2},
            {"air, 1.5", AssignPolicy::air, 1.5, 2},
            {"soar, all", AssignPolicy::soar, 0, 2},
            {"soar, 1.5", AssignPolicy::soar, 1.5, 2},
            {"demand, 1.35", AssignPolicy::demand, 1.35, 2},
            {"demand, 1.5", AssignPolicy::demand, 1.5, 2},
            {"demand, 1.5, 3 entries", AssignPolicy::demand, 1.5, 3},
    };
    reporter.report(lists, "single", lists.primary, 1);
    std::map<std::pair<AssignPolicy, bool>, Proposal> proposals;
    for (const Variant& v : variants) {
        MultiAssign assigner;
        assigner.policy = v.policy;
        assigner.rng_rule = v.rng_rule;
        if (v.policy == AssignPolicy::posterior) {
            if (lists.mixture.k == 0) {
                continue;
            }
            if (v.max_inflation > 0) {
                assigner.tau = 0;
            }
        }
        const auto key = std::make_pair(v.policy, v.rng_rule);
        if (v.policy == AssignPolicy::posterior || !proposals.count(key)) {
            proposals[key] = propose(p, lists, assigner);
        }
        reporter.report(
                lists,
                v.name,
                stored_lists(
                        lists,
                        proposals[key],
                        kEntries - 1,
                        v.width,
                        v.max_inflation),
                v.width);
    }
}

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, ',');) {
        parts.push_back(part);
    }
    return parts;
}

void run(
        const Problem& p,
        idx_t nlist,
        int seed,
        const std::vector<std::string>& models,
        Reporter& reporter) {
    std::vector<std::string> fits = {"k-means"}; // the reference
    std::copy_if(
            models.begin(),
            models.end(),
            std::back_inserter(fits),
            [](const std::string& model) { return model != "k-means"; });
    for (const std::string& model : fits) {
        Timer timer;
        Lists lists = model == "free" ? fit_mixture(
                                                p,
                                                nlist,
                                                seed,
                                                VarianceModel::per_component,
                                                WeightModel::free)
                : model == "tied" ? fit_mixture(
                                            p,
                                            nlist,
                                            seed,
                                            VarianceModel::tied,
                                            WeightModel::uniform)
                                  : fit_kmeans(p, nlist, seed);
        const double fitted = timer.seconds();
        lists.primary.resize(p.base.n);
        lists.quantizer.assign(p.base.n, p.rows(), lists.primary.data());
        if (model == "k-means") {
            reporter.start(
                    nlist,
                    seed,
                    measure_scans(
                            lists.quantizer,
                            p.base.n,
                            1,
                            lists.primary.data(),
                            p.queries.n,
                            p.queries.values.data(),
                            kNeighbors,
                            p.neighbors.data()));
        }
        if (std::count(models.begin(), models.end(), model)) {
            report_policies(p, lists, reporter);
        }
        std::printf(
                "# %s: fit %.1f s, all policies %.1f s\n",
                lists.name.c_str(),
                fitted,
                timer.seconds() - fitted);
    }
}

} // namespace

int main(int argc, char** argv) {
    try {
        FLASHGMM_THROW_IF_NOT_FMT(
                argc >= 4 && argc <= 7,
                "usage: bench_assignment BASE QUERIES NLIST[,NLIST...] "
                "[SEEDS [RESULTS.jsonl [k-means,free,tied]]]");
        const int seeds = argc > 4 ? std::atoi(argv[4]) : 3;
        std::ofstream results;
        if (argc > 5) {
            results.open(argv[5], std::ios::app);
            FLASHGMM_THROW_IF_NOT_FMT(
                    results.good(), "cannot write %s", argv[5]);
        }
        const Problem problem = load(argv[1], argv[2]);
        std::printf(
                "%s: %ld rows, %ld queries\nnlist seed %-18s %-26s %5s  R80    "
                "R90    R95    R99    nprobe\n",
                problem.name.c_str(),
                long(problem.base.n),
                long(problem.queries.n),
                "centroids",
                "policy",
                "infl");
        const std::vector<std::string> models =
                split(argc > 6 ? argv[6] : "k-means,free,tied");
        for (const std::string& model : models) {
            FLASHGMM_THROW_IF_NOT_FMT(
                    model == "free" || model == "tied" || model == "k-means",
                    "centroids '%s' are none of k-means, free, tied",
                    model.c_str());
        }
        Reporter reporter(problem, results);
        for (int seed = 1; seed <= seeds; seed++) {
            for (const std::string& nlist : split(argv[3])) {
                run(problem, std::atoll(nlist.c_str()), seed, models, reporter);
            }
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "bench_assignment: %s\n", error.what());
        return 1;
    }
    return 0;
}
