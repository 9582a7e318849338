#include <algorithm>
#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <faiss_flashgmm/tools/Console.h>
#include <faiss_flashgmm/tools/bench/Centroids.h>
#include <faiss_flashgmm/tools/bench/scans.h>
#include <faiss_flashgmm/tools/bench/searches.h>
#include <faiss_flashgmm/tools/commands.h>
#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

namespace {

/// Which centroids get which policies.
std::vector<std::string> policies_of(const std::string& centroids) {
    if (centroids == "paper" || centroids == "super-k-means" ||
        centroids == "tied+free" || centroids == "per_component+uniform") {
        return {"single", "posterior"};
    }
    return {"single",
            "posterior",
            "posterior,1.5,tau=0",
            "nearest",
            "nearest,1.5",
            "nearest,1.5,rng_rule=1",
            "air",
            "air,1.5",
            "soar",
            "soar,1.5",
            "demand,1.35",
            "demand,1.5",
            "demand,1.5,3"};
}

/// What is built and searched of each codec.
struct Searched {
    const char* centroids;
    const char* policy;
    bool with_longer_codes = false; ///< in the place of the codec itself
};
constexpr Searched kSearched[] = {
        {"k-means", "single"},
        {"k-means", "single", true},
        {"paper", "posterior"},
        {"k-means", "soar,1.5"},
        {"k-means", "demand,1.5"},
};

/// The smallest divisor of d that is at least `wanted`.
int64_t divisor(int64_t d, int64_t wanted) {
    int64_t m = std::clamp<int64_t>(wanted, 1, d);
    while (d % m != 0) {
        m++;
    }
    return m;
}

/// Codecs whose indexes are searched by turns.
struct CodecGroup {
    std::vector<std::string> codecs;
    /// With one entry a vector takes no less memory than 1.5 entries in codes
    /// of the others; empty: no codes are that long.
    std::string longer;
};

/// Codes of about one byte for 8 dimensions, and of four bits for 2.
std::vector<CodecGroup> codecs_of(int64_t d) {
    const int64_t bytes = divisor(d, d / 8);
    const int64_t halves = divisor(d, d / 2);
    return {{{"Flat"}, ""},
            {{format("PQ%lld", static_cast<long long>(bytes))},
             format("PQ%lld",
                    static_cast<long long>(divisor(d, bytes * 3 / 2 + 4)))},
            {{format("PQ%lldx4fs,RFlat", static_cast<long long>(halves))},
             format("PQ%lldx4fs,RFlat", static_cast<long long>(d))}};
}

struct Bench {
    Common common;
    std::vector<std::string> names = {"small"};
    std::string directory = "data";
    BenchFiles own; ///< files that the command line names
    std::vector<int64_t> nlists;
    std::vector<std::string> centroids = centroid_names();
    std::vector<std::string> policies;
    std::vector<std::string> codecs;
    std::string output;
    int seeds = 3;
    int64_t searches = 1;
    SearchTiming timing;

    void run();

   private:
    std::vector<std::string> policies_for(const std::string& centroids) const;
    std::vector<CodecGroup> codecs_for(int64_t d) const;
    /// The indexes over these centroids that are not in the rows yet.
    std::vector<SearchedIndex> missing_indexes(
            const BenchCase& bench,
            const std::string& centroids,
            const CodecGroup& group,
            const BenchRows& rows) const;
    void run(const BenchCase& bench, BenchRows& rows) const;
};

std::vector<std::string> Bench::policies_for(
        const std::string& centroids) const {
    std::vector<std::string> chosen =
            policies.empty() ? policies_of(centroids) : policies;
    std::erase_if(chosen, [&](const std::string& policy) {
        return parse_policy(policy).needs_mixture() && !is_mixture(centroids);
    });
    return chosen;
}

std::vector<CodecGroup> Bench::codecs_for(int64_t d) const {
    if (codecs.empty()) {
        return codecs_of(d);
    }
    return {{codecs, ""}};
}

std::vector<SearchedIndex> Bench::missing_indexes(
        const BenchCase& bench,
        const std::string& centroids,
        const CodecGroup& group,
        const BenchRows& rows) const {
    std::vector<SearchedIndex> missing;
    if (bench.seed > searches) {
        return missing;
    }
    const std::vector<std::string> wanted = policies_for(centroids);
    for (const Searched& s : kSearched) {
        if (centroids != s.centroids ||
            !std::count(wanted.begin(), wanted.end(), s.policy)) {
            continue;
        }
        for (const std::string& codec :
             s.with_longer_codes ? std::vector{group.longer} : group.codecs) {
            if (!codec.empty() &&
                !rows.has(bench.key(centroids, s.policy, codec))) {
                missing.push_back({nullptr, s.policy, codec});
            }
        }
    }
    return missing;
}

void Bench::run(const BenchCase& bench, BenchRows& rows) const {
    const std::vector<CodecGroup> groups = codecs_for(bench.set.base.d);
    const auto is_searched = [&](const std::string& name) {
        return std::any_of(
                groups.begin(), groups.end(), [&](const CodecGroup& group) {
                    return !missing_indexes(bench, name, group, rows).empty();
                });
    };
    const auto is_wanted = [&](const std::string& name) {
        return is_searched(name) ||
                !has_scans(bench, name, policies_for(name), rows);
    };
    if (std::any_of(centroids.begin(), centroids.end(), is_wanted)) {
        std::deque<Centroids> fitted;
        ScanCurve reference;
        for (const std::string& name : centroids) {
            poll_interrupt();
            const bool is_reference = name == centroids.front();
            if (!is_reference && !is_wanted(name)) {
                continue;
            }
            Centroids c = fit_centroids(
                    bench.set, name, bench.nlist, bench.seed, common);
            if (is_reference) {
                reference = scans_of_single(bench, c);
            }
            bench_scans(bench, c, policies_for(name), reference, rows);
            if (is_searched(name)) {
                fitted.push_back(std::move(c));
            }
        }
        LearnedPolicies learned;
        for (const CodecGroup& group : groups) {
            poll_interrupt();
            std::vector<SearchedIndex> indexes;
            for (const Centroids& c : fitted) {
                for (SearchedIndex index :
                     missing_indexes(bench, c.name, group, rows)) {
                    index.centroids = &c;
                    indexes.push_back(std::move(index));
                }
            }
            bench_searches(bench, indexes, timing, learned, rows);
        }
    }
    if (bench.seed <= searches) {
        bench_hnsw(bench, timing, rows);
    }
}

void Bench::run() {
    common.apply();
    FLASHGMM_THROW_IF_NOT_FMT(
            own.base.empty() == own.queries.empty(),
            "--base and --queries belong together");
    std::vector<BenchFiles> sets;
    if (own.base.empty()) {
        sets = find_sets(names, directory);
    } else {
        own.name = own.base.substr(own.base.rfind('/') + 1);
        sets = {own};
    }
    // The reference comes first.
    const std::string first = centroid_names().front();
    std::erase(centroids, first);
    centroids.insert(centroids.begin(), first);
    BenchRows rows(output, common.json);
    for (const BenchFiles& files : sets) {
        const BenchSet set = load_set(files);
        rows.say(format(
                "\n%s%s: %lld vectors of %lld dimensions, %lld queries (%s)",
                files.name.c_str(),
                files.stands_for.empty()
                        ? ""
                        : (" in the place of " + files.stands_for).c_str(),
                static_cast<long long>(set.base.n),
                static_cast<long long>(set.base.d),
                static_cast<long long>(set.queries.n),
                files.base.c_str()));
        rows.say(scans_header());
        for (int seed = 1; seed <= seeds; seed++) {
            for (const int64_t nlist : nlists.empty() ? files.nlists : nlists) {
                FLASHGMM_THROW_IF_NOT_FMT(
                        nlist <= set.base.n,
                        "%lld lists for %lld vectors",
                        static_cast<long long>(nlist),
                        static_cast<long long>(set.base.n));
                run({set, nlist, seed}, rows);
            }
        }
    }
}

} // namespace

void add_bench(CLI::App& program) {
    const auto bench = std::make_shared<Bench>();
    CLI::App& command = *program.add_subcommand(
            "bench", "Measure recall against lists, scans, time and memory");
    command.footer(
            "Examples: flashgmm bench small -o rows.jsonl\n"
            "          flashgmm bench paper --data data/sets -o rows.jsonl\n"
            "Sets: sift1m deep10m glove100 (paper stands for all three) as "
            "data/fetch leaves them,\nor their stand-ins sift400k deep96 "
            "glove200k; glove50k sift10k (small). Columns: entries\na vector, "
            "what k-means with one list scans for recall@10 = 0.80 to 0.99 "
            "over what this\nscans, nprobe for 0.95. Rows that FILE has are "
            "not measured again. benchs/plot.py\nmakes tables and figures of "
            "rows.");
    command.add_option("sets", bench->names, "Sets")->capture_default_str();
    command.add_option("--data", bench->directory, "Folder of the sets")
            ->capture_default_str();
    command.add_option("--base", bench->own.base, "Vectors of a set of yours");
    command.add_option("--queries", bench->own.queries, "Its queries");
    command.add_option(
            "--truth", bench->own.truth, "Their exact neighbours, if known");
    add_metric(command, bench->own.metric);
    command.add_option("--nlist", bench->nlists, "Lists; default: by the set")
            ->delimiter(',')
            ->check(CLI::PositiveNumber);
    command.add_option("--seeds", bench->seeds, "Seeds 1, 2, ...")
            ->check(CLI::PositiveNumber)
            ->capture_default_str();
    command.add_option("--centroids", bench->centroids, "What places the lists")
            ->delimiter(',')
            ->check(CLI::IsMember(centroid_names()))
            ->capture_default_str();
    command.add_option(
            "--policy",
            bench->policies,
            "As MA(...) of an index: soar,1.5; may be repeated. Default: all");
    command.add_option(
            "--codec",
            bench->codecs,
            "What built indexes store: Flat; may be repeated, then all are "
            "searched by turns.\nDefault: Flat, PQ and PQ FastScan with "
            "refinement");
    command.add_option(
                   "--searches",
                   bench->searches,
                   "Seeds of which indexes are built and timed")
            ->check(CLI::NonNegativeNumber)
            ->capture_default_str();
    command.add_option(
                   "--timed", bench->timing.queries, "Queries on one thread")
            ->check(CLI::PositiveNumber)
            ->capture_default_str();
    command.add_option("-o,--output", bench->output, "File of rows");
    bench->common.add_device(command);
    bench->common.add_to(command);
    command.callback([bench] { bench->run(); });
}

} // namespace faiss_flashgmm
