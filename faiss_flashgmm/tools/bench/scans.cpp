#include <faiss_flashgmm/tools/bench/scans.h>

#include <algorithm>
#include <cmath>
#include <map>

#include <faiss_flashgmm/factory_options.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Timer.h>

namespace faiss_flashgmm {

namespace {

constexpr int kNeighbors = 10;
constexpr int kRecalls[] = {80, 90, 95, 99}; ///< percent, of gains

/// The nprobe of a row: 1, 2, 3, 4, 6, 8, 12, ... as far as there are lists.
std::vector<int64_t> nprobes_to_report(int64_t nlist) {
    constexpr int64_t kMost = 512;
    std::vector<int64_t> nprobes = {1};
    for (int64_t p = 2; p <= std::min(nlist, kMost); p *= 2) {
        nprobes.push_back(p);
        if (p + p / 2 <= std::min(nlist, kMost)) {
            nprobes.push_back(p + p / 2);
        }
    }
    return nprobes;
}

std::vector<double> at(
        const std::vector<double>& values,
        const std::vector<int64_t>& nprobes) {
    std::vector<double> chosen;
    for (const int64_t nprobe : nprobes) {
        chosen.push_back(rounded(values[nprobe - 1]));
    }
    return chosen;
}

/// What a policy proposes, before any limit.
struct Proposal {
    int width = 0; ///< lists a vector beyond the primary one
    std::vector<idx_t> extra;
    std::vector<float> scores;
    double learn_seconds = 0;
    double choose_seconds = 0;
};

/// The policy without limits: policies that agree here share a proposal.
MultiAssign without_limits(MultiAssign assigner) {
    assigner.max_inflation = 0;
    assigner.max_entries = 2;
    return assigner;
}

Proposal propose(
        const BenchSet& set,
        const Centroids& centroids,
        MultiAssign assigner,
        int max_entries) {
    assigner.max_entries = max_entries;
    Proposal proposal;
    proposal.width = assigner.max_lists() - 1;
    Timer timer;
    assigner.learn(
            centroids.quantizer, centroids.mixture, set.base.n, set.rows());
    proposal.learn_seconds = timer.seconds();
    timer.restart();
    proposal.extra.resize(set.base.n * proposal.width);
    proposal.scores.resize(proposal.extra.size());
    assigner.extra_lists(
            centroids.quantizer,
            centroids.mixture,
            set.base.n,
            set.rows(),
            centroids.primary.data(),
            proposal.extra.data(),
            proposal.scores.data());
    proposal.choose_seconds = timer.seconds();
    return proposal;
}

/// The lists of each row, size n * assigner.max_lists(): one more is the best
/// one more, so that of a proposal the first ones are kept.
std::vector<idx_t> stored_lists(
        const std::vector<idx_t>& primary,
        const Proposal& proposal,
        const MultiAssign& assigner) {
    const idx_t n = primary.size();
    const int extra_width = assigner.max_lists() - 1;
    std::vector<idx_t> extra(n * extra_width);
    std::vector<float> scores(extra.size());
    for (idx_t i = 0; i < n; i++) {
        const idx_t from = i * proposal.width, to = i * extra_width;
        std::copy_n(
                proposal.extra.data() + from, extra_width, extra.data() + to);
        std::copy_n(
                proposal.scores.data() + from, extra_width, scores.data() + to);
    }
    if (assigner.max_inflation > 0) {
        keep_best(
                assigner.max_inflation,
                n,
                primary.data(),
                extra_width,
                scores.data(),
                extra.data());
    }
    const int width = extra_width + 1;
    std::vector<idx_t> stored(n * width);
    for (idx_t i = 0; i < n; i++) {
        stored[i * width] = primary[i];
        std::copy_n(
                extra.data() + i * extra_width,
                extra_width,
                &stored[i * width] + 1);
    }
    return stored;
}

/// What the lists themselves say.
struct ListSizes {
    int64_t entries = 0;
    double imbalance = 0; ///< nlist sum e^2 / (sum e)^2; 1 is balanced

    ListSizes(const std::vector<idx_t>& lists, int64_t nlist) {
        std::vector<int64_t> sizes(nlist);
        for (const idx_t list : lists) {
            if (list >= 0) {
                sizes[list]++;
                entries++;
            }
        }
        for (const int64_t size : sizes) {
            imbalance += double(size) / double(entries) * double(size) /
                    double(entries) * double(nlist);
        }
    }
};

class Measurement {
   public:
    Measurement(
            const BenchCase& bench,
            const Centroids& centroids,
            const ScanCurve& reference,
            BenchRows& rows)
            : bench_(bench),
              centroids_(centroids),
              reference_(reference),
              rows_(rows),
              order_(centroids.quantizer,
                     bench.set.queries.n,
                     bench.set.queries.values.data()),
              nprobes_(nprobes_to_report(bench.nlist)) {}

    void add_row(
            const std::string& policy,
            const MultiAssign& assigner,
            const Proposal& proposal) {
        const BenchSet& set = bench_.set;
        const std::vector<idx_t> lists =
                stored_lists(centroids_.primary, proposal, assigner);
        const int width = assigner.max_lists();
        const ListSizes sizes(lists, bench_.nlist);
        const double inflation = double(sizes.entries) / double(set.base.n);
        const ScanCurve curve = scans(lists, width, kNeighbors);
        JsonObject row = bench_.key(centroids_.name, policy, kScans);
        row.add("stands_for", set.files.stands_for)
                .add("n", set.base.n)
                .add("d", set.base.d)
                .add("queries", set.queries.n)
                .add("entries_per_vector", rounded(inflation));
        std::string text =
                format("%-10s %5lld %4d  %-22s %-26s %5.3f",
                       set.files.name.c_str(),
                       static_cast<long long>(bench_.nlist),
                       bench_.seed,
                       centroids_.name.c_str(),
                       policy.c_str(),
                       inflation);
        for (const int percent : kRecalls) {
            const double gain = reference_.scanned_at(percent / 100.0) /
                    curve.scanned_at(percent / 100.0);
            row.add(format("scan_gain_r%d", percent), rounded(gain));
            text += format(" %6.3f", gain);
        }
        row.add("nprobe_r95", rounded(curve.probes_at(0.95)))
                .add("scanned_r95", rounded(curve.scanned_at(0.95)))
                .add("imbalance", rounded(sizes.imbalance))
                .add("bytes",
                     sizes.entries *
                                     (set.base.d * int64_t(sizeof(float)) +
                                      int64_t(sizeof(idx_t))) +
                             bench_.nlist * set.base.d * int64_t(sizeof(float)))
                .add("fit_seconds", rounded(centroids_.seconds))
                .add("learn_seconds", rounded(proposal.learn_seconds))
                .add("choose_seconds", rounded(proposal.choose_seconds))
                .add("nprobe", nprobes_)
                .add("recall_1", at(scans(lists, width, 1).recall, nprobes_))
                .add("recall_10", at(curve.recall, nprobes_));
        if (set.k >= 100) {
            row.add("recall_100",
                    at(scans(lists, width, 100).recall, nprobes_));
        }
        row.add("scanned", at(curve.scanned, nprobes_))
                .add("distinct",
                     at(distinct_scanned(
                                order_, set.base.n, width, lists.data()),
                        nprobes_));
        text += format(" %8.1f", curve.probes_at(0.95));
        rows_.add(row, text);
    }

   private:
    ScanCurve scans(const std::vector<idx_t>& lists, int width, int k) const {
        return measure_scans(
                order_,
                bench_.set.base.n,
                width,
                lists.data(),
                k,
                bench_.set.nearest(k).data());
    }

    const BenchCase& bench_;
    const Centroids& centroids_;
    const ScanCurve& reference_;
    BenchRows& rows_;
    const ProbingOrder order_;
    const std::vector<int64_t> nprobes_;
};

} // namespace

MultiAssign parse_policy(const std::string& options) {
    MultiAssign assigner;
    set_options(assigner, split_description(options));
    assigner.check();
    return assigner;
}

bool has_scans(
        const BenchCase& bench,
        const std::string& centroids,
        const std::vector<std::string>& policies,
        const BenchRows& rows) {
    return std::all_of(
            policies.begin(), policies.end(), [&](const std::string& policy) {
                return rows.has(bench.key(centroids, policy, kScans));
            });
}

ScanCurve scans_of_single(const BenchCase& bench, const Centroids& centroids) {
    return measure_scans(
            centroids.quantizer,
            bench.set.base.n,
            1,
            centroids.primary.data(),
            bench.set.queries.n,
            bench.set.queries.values.data(),
            kNeighbors,
            bench.set.nearest(kNeighbors).data());
}

void bench_scans(
        const BenchCase& bench,
        const Centroids& centroids,
        const std::vector<std::string>& policies,
        const ScanCurve& reference,
        BenchRows& rows) {
    Measurement measurement(bench, centroids, reference, rows);
    std::map<std::string, std::vector<std::string>> alike;
    for (const std::string& policy : policies) {
        const MultiAssign assigner = parse_policy(policy);
        if (!rows.has(bench.key(centroids.name, policy, kScans))) {
            alike[without_limits(assigner).settings()].push_back(policy);
        }
    }
    for (const auto& [_, names] : alike) {
        int max_entries = 1;
        for (const std::string& name : names) {
            max_entries = std::max(max_entries, parse_policy(name).max_entries);
        }
        const Proposal proposal =
                propose(bench.set,
                        centroids,
                        without_limits(parse_policy(names.front())),
                        max_entries);
        for (const std::string& name : names) {
            measurement.add_row(name, parse_policy(name), proposal);
        }
    }
}

std::string scans_header() {
    return format(
            "\n%-10s %5s %4s  %-22s %-26s %5s %6s %6s %6s %6s %8s",
            "set",
            "lists",
            "seed",
            "centroids",
            "policy",
            "infl",
            "R80",
            "R90",
            "R95",
            "R99",
            "nprobe");
}

} // namespace faiss_flashgmm
