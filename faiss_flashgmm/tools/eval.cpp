#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include <faiss/IndexIVF.h>
#include <faiss/IndexPreTransform.h>

#include <faiss_flashgmm/compat.h>
#include <faiss_flashgmm/index_tree.h>
#include <faiss_flashgmm/io/open_vectors.h>
#include <faiss_flashgmm/tools/Console.h>
#include <faiss_flashgmm/tools/commands.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Json.h>
#include <faiss_flashgmm/utils/Timer.h>

namespace faiss_flashgmm {

namespace {

struct Eval {
    Common common;
    std::string index_file;
    std::string queries;
    std::string truth;
    int64_t k = 10;
    std::vector<int64_t> nprobes = {1, 2, 4, 8, 16, 32, 64};

    void run();
};

/// Mean share of the k nearest that were found, of queries and neighbours.
double recall(
        const Matrix<int32_t>& truth,
        int64_t k,
        const std::vector<idx_t>& found) {
    int64_t hits = 0;
    for (int64_t i = 0; i < truth.n; i++) {
        const std::unordered_set<idx_t> wanted(truth.row(i), truth.row(i) + k);
        for (int64_t j = i * k; j < (i + 1) * k; j++) {
            hits += wanted.count(found[j]);
        }
    }
    return double(hits) / double(truth.n * k);
}

/// Stored entries in the lists that a query probes, mean over the queries.
double entries_scanned(
        const faiss::Index& index,
        const faiss::IndexIVF& ivf,
        const Matrix<float>& queries,
        int64_t nprobe) {
    const float* x = queries.values.data();
    std::unique_ptr<const float[]> transformed;
    if (const auto* chain =
                dynamic_cast<const faiss::IndexPreTransform*>(&index)) {
        x = chain->apply_chain(queries.n, x);
        if (x != queries.values.data()) {
            transformed.reset(x);
        }
    }
    nprobe = std::min<int64_t>(nprobe, ivf.nlist);
    std::vector<idx_t> lists(queries.n * nprobe);
    std::vector<float> distances(lists.size());
    ivf.quantizer->search(queries.n, x, nprobe, distances.data(), lists.data());
    double entries = 0;
    for (const idx_t list : lists) {
        entries += list >= 0 ? double(ivf.get_list_size(list)) : 0;
    }
    return entries / double(queries.n);
}

void Eval::run() {
    common.apply();
    const std::unique_ptr<faiss::Index> index = open_index(index_file);
    const Matrix<float> wanted = read_vectors(queries);
    const Matrix<int32_t> neighbors = read_ids(truth);
    FLASHGMM_THROW_IF_NOT_FMT(
            wanted.d == index->d,
            "%s is of %lld dimensions, %s of %d",
            queries.c_str(),
            static_cast<long long>(wanted.d),
            index_file.c_str(),
            index->d);
    FLASHGMM_THROW_IF_NOT_FMT(
            neighbors.n == wanted.n && neighbors.d >= k && wanted.n > 0,
            "%s holds %lld neighbours of %lld queries; needed are %lld of "
            "%lld",
            truth.c_str(),
            static_cast<long long>(neighbors.d),
            static_cast<long long>(neighbors.n),
            static_cast<long long>(k),
            static_cast<long long>(wanted.n));
    faiss::IndexIVF* const ivf = try_extract_index_ivf(index.get());
    if (ivf == nullptr) {
        nprobes = {1};
    }
    if (!common.json) {
        std::printf(
                "%8s %11s %14s %11s\n",
                "nprobe",
                "recall",
                "scanned",
                "queries/s");
    }
    std::vector<float> distances(wanted.n * k);
    std::vector<idx_t> ids(wanted.n * k);
    for (const int64_t nprobe : nprobes) {
        poll_interrupt();
        double scanned = double(index->ntotal);
        if (ivf != nullptr) {
            ivf->nprobe = nprobe;
            scanned = entries_scanned(*index, *ivf, wanted, nprobe);
        }
        const Timer timer;
        index->search(
                wanted.n,
                wanted.values.data(),
                k,
                distances.data(),
                ids.data());
        const double rate = double(wanted.n) / timer.seconds();
        const double found = recall(neighbors, k, ids);
        if (common.json) {
            std::printf(
                    "%s\n",
                    JsonObject()
                            .add("nprobe", nprobe)
                            .add("k", k)
                            .add("recall", found)
                            .add("scanned", scanned)
                            .add("queries_per_second", rate)
                            .str()
                            .c_str());
        } else {
            std::printf(
                    "%8lld %11.4f %14.1f %11.0f\n",
                    static_cast<long long>(nprobe),
                    found,
                    scanned,
                    rate);
        }
    }
}

} // namespace

void add_eval(CLI::App& program) {
    const auto eval = std::make_shared<Eval>();
    CLI::App& command = *program.add_subcommand(
            "eval", "Measure recall against lists probed and vectors scanned");
    command.footer(
            "Example: flashgmm eval base.index queries.fvecs "
            "groundtruth.ivecs --nprobe 4,8,16\n"
            "recall: mean share of the k nearest that were found; scanned: "
            "stored entries read for a query\n(copies counted); queries/s: of "
            "all queries in one call, on all threads.");
    add_file(command, "index", eval->index_file, "Output of build")->required();
    add_file(command, "queries", eval->queries, "Vectors to look for")
            ->required();
    add_file(
            command,
            "truth",
            eval->truth,
            "Their exact neighbours, output of groundtruth")
            ->required();
    command.add_option("-k", eval->k, "Neighbours a query")
            ->check(CLI::PositiveNumber)
            ->capture_default_str();
    command.add_option("--nprobe", eval->nprobes, "Lists probed, in turn")
            ->delimiter(',')
            ->check(CLI::PositiveNumber)
            ->default_str("1,2,4,8,16,32,64");
    eval->common.add_to(command);
    command.callback([eval] { eval->run(); });
}

} // namespace faiss_flashgmm
