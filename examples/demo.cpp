// Mixtures against k-means as coarse quantizers of FAISS indexes, on real
// vectors:
//
//     flashgmm_demo <data directory> <output directory>

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include <faiss/IndexFlat.h>
#include <faiss/IndexIVFFlat.h>
#include <faiss/IndexIVFPQ.h>

#include <faiss_flashgmm/FlashGMMClustering.h>
#include <faiss_flashgmm/IndexIVFMultiAssign.h>
#include <faiss_flashgmm/io/open_vectors.h>
#include <faiss_flashgmm/train_ivf.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Timer.h>

#include "Report.h"

namespace {

using faiss_flashgmm::FlashGMMClustering;
using faiss_flashgmm::FlashGMMOptions;
using faiss_flashgmm::format;
using faiss_flashgmm::Matrix;
using faiss_flashgmm::Mixture;
using faiss_flashgmm::Progress;
using faiss_flashgmm::Timer;
using faiss_flashgmm::VarianceModel;
using faiss_flashgmm::WeightModel;

constexpr int kNeighbors = 10;
constexpr int kIterations = 25;
constexpr int kSeed = 1234;
constexpr int kTimedRuns = 3;
constexpr int kDimensionsPerByte = 4; ///< of PQ codes
constexpr int kRowsPerCodeword = 64;  ///< few, to train PQ in seconds
constexpr int kCodecIterations = 10;  ///< few, for the same reason
constexpr int64_t kProbes[] = {1, 2, 4, 8, 16, 32, 64};

struct Dataset {
    std::string name;
    int64_t nlist = 0;
    Matrix<float> base;
    Matrix<float> queries;
    Matrix<int32_t> neighbors; ///< of each query, nearest first
};

/// Centroids, and the mixture that they are the means of, if any.
struct Coarse {
    std::string name;
    faiss::IndexFlatL2 quantizer;
    Mixture mixture;
    double train_seconds = 0;
};

const Timer since_start;

/// A line of progress, with the time since the start of the program.
void say(const std::string& text) {
    std::fprintf(stderr, "[%5.1f s] %s\n", since_start.seconds(), text.c_str());
}

/// Shows where a fit is: one line that is written over on a terminal, and
/// otherwise a line a second.
class ProgressPrinter {
   public:
    explicit ProgressPrinter(std::string what) : what_(std::move(what)) {}

    ~ProgressPrinter() {
        if (is_terminal_) {
            std::fprintf(stderr, "\r\33[K");
        }
    }

    void operator()(const Progress& progress) {
        if (since_last_.seconds() < (is_terminal_ ? 0.1 : 1)) {
            return;
        }
        since_last_.restart();
        std::string text = what_ + ": ";
        switch (progress.stage) {
            case Progress::Stage::check_rows:
                text += "checking the rows";
                break;
            case Progress::Stage::initialize:
                text += "first centroids";
                break;
            case Progress::Stage::em:
                text +=
                        format("iteration %d of %d",
                               progress.iteration + 1,
                               progress.niter);
                if (progress.iteration > 0) {
                    text += format(
                            ", log-likelihood %.3f", progress.log_likelihood);
                }
        }
        if (progress.eta_seconds >= 0) {
            text += format(", %.0f s left", progress.eta_seconds);
        }
        std::fprintf(stderr, is_terminal_ ? "\r\33[K%s" : "%s\n", text.c_str());
        std::fflush(stderr);
    }

   private:
    std::string what_;
    bool is_terminal_ = isatty(STDERR_FILENO);
    Timer since_last_;
};

Dataset load(
        const std::string& directory,
        const std::string& name,
        const std::string& stem,
        const char* extension,
        int64_t nlist) {
    const std::string path = directory + "/" + stem;
    Dataset data;
    data.name = name;
    data.nlist = nlist;
    data.base = faiss_flashgmm::read_vectors(path + "_base" + extension);
    data.queries = faiss_flashgmm::read_vectors(path + "_query" + extension);
    data.neighbors = faiss_flashgmm::read_ids(path + "_groundtruth.ivecs");
    FLASHGMM_THROW_IF_NOT_FMT(
            data.base.d == data.queries.d,
            "%s: rows have %" PRId64 " dimensions, queries %" PRId64,
            path.c_str(),
            data.base.d,
            data.queries.d);
    FLASHGMM_THROW_IF_NOT_FMT(
            data.neighbors.n == data.queries.n &&
                    data.neighbors.d >= kNeighbors,
            "%s: %" PRId64 " x %" PRId64 " neighbours for %" PRId64 " queries",
            path.c_str(),
            data.neighbors.n,
            data.neighbors.d,
            data.queries.n);
    return data;
}

/// The same for k-means and for mixtures, whose first centroids come from
/// some k-means iterations: those are added here.
faiss::ClusteringParameters clustering_parameters(int extra_iterations) {
    faiss::ClusteringParameters cp;
    cp.niter = kIterations + extra_iterations;
    cp.seed = kSeed;
    return cp;
}

Coarse train_kmeans(const Dataset& data) {
    Coarse coarse{"k-means", faiss::IndexFlatL2(data.base.d), {}, 0};
    const Timer timer;
    faiss::IndexIVFFlat index(&coarse.quantizer, data.base.d, data.nlist);
    index.cp = clustering_parameters(FlashGMMOptions().init_iterations);
    index.train(data.base.n, data.base.values.data());
    coarse.train_seconds = timer.seconds();
    say(
            format("%s, k-means: %d iterations, %.2f s",
                   data.name.c_str(),
                   index.cp.niter,
                   coarse.train_seconds));
    return coarse;
}

std::string model_name(const FlashGMMOptions& gmm) {
    const bool tied = gmm.variance == VarianceModel::tied;
    const bool uniform = gmm.weights == WeightModel::uniform;
    return tied ? (uniform ? "tied mixture" : "one-variance mixture")
                : (uniform ? "equal-weight mixture" : "free mixture");
}

/// The default first, then what differs from it.
std::vector<FlashGMMOptions> mixtures_to_show() {
    FlashGMMOptions free;
    free.variance = VarianceModel::per_component;
    free.weights = WeightModel::free;
    FlashGMMOptions tied;
    tied.variance = VarianceModel::tied;
    tied.weights = WeightModel::uniform;
    std::vector<FlashGMMOptions> options = {FlashGMMOptions()};
    for (const FlashGMMOptions& other : {free, tied}) {
        if (model_name(other) != model_name(options.front())) {
            options.push_back(other);
        }
    }
    return options;
}

Coarse train_mixture(const Dataset& data, FlashGMMOptions gmm) {
    Coarse coarse{model_name(gmm), faiss::IndexFlatL2(data.base.d), {}, 0};
    const std::string what = data.name + ", " + coarse.name;
    const Timer timer;
    FlashGMMClustering clustering(
            data.base.d, data.nlist, clustering_parameters(0));
    {
        ProgressPrinter printer(what);
        gmm.progress = [&](const Progress& progress) { printer(progress); };
        clustering.gmm = gmm;
        clustering.train(
                data.base.n, data.base.values.data(), coarse.quantizer);
    }
    coarse.mixture = clustering.mixture;
    coarse.train_seconds = timer.seconds();
    const auto& stats = clustering.em_stats;
    say(
            format("%s: %zu iterations, %.2f s, log-likelihood %.3f to %.3f, "
                   "%.1f components a row",
                   what.c_str(),
                   stats.size(),
                   coarse.train_seconds,
                   stats.front().log_likelihood,
                   stats.back().log_likelihood,
                   stats.back().pairs_per_row));
    return coarse;
}

double mean(const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / values.size();
}

/// Share of its true neighbours that each query found.
std::vector<double> recalls(
        const Dataset& data,
        const std::vector<faiss::idx_t>& found) {
    std::vector<double> out(data.queries.n);
    for (int64_t i = 0; i < data.queries.n; i++) {
        const int32_t* wanted = data.neighbors.row(i);
        const faiss::idx_t* ids = found.data() + i * kNeighbors;
        const auto hits =
                std::count_if(ids, ids + kNeighbors, [&](faiss::idx_t id) {
                    return std::count(wanted, wanted + kNeighbors, id) > 0;
                });
        out[i] = double(hits) / kNeighbors;
    }
    return out;
}

/// Length of the lists that each query probes.
std::vector<double> entries_scanned(
        const Dataset& data,
        const faiss::IndexIVF& index) {
    const size_t nprobe = std::min(index.nprobe, index.nlist);
    std::vector<faiss::idx_t> lists(data.queries.n * nprobe);
    index.quantizer->assign(
            data.queries.n, data.queries.values.data(), lists.data(), nprobe);
    std::vector<double> out(data.queries.n);
    for (size_t i = 0; i < lists.size(); i++) {
        out[i / nprobe] += index.get_list_size(lists[i]);
    }
    return out;
}

Method measure(const Dataset& data, faiss::IndexIVF& index) {
    Method method;
    std::vector<float> distances(data.queries.n * kNeighbors);
    std::vector<faiss::idx_t> ids(data.queries.n * kNeighbors);
    for (const int64_t nprobe : kProbes) {
        index.nprobe = nprobe;
        double fastest = HUGE_VAL;
        for (int run = 0; run < kTimedRuns; run++) {
            const Timer timer;
            index.search(
                    data.queries.n,
                    data.queries.values.data(),
                    kNeighbors,
                    distances.data(),
                    ids.data());
            fastest = std::min(fastest, timer.seconds());
        }
        Measurement measurement;
        measurement.nprobe = nprobe;
        measurement.recall_of_query = recalls(data, ids);
        measurement.scanned_of_query = entries_scanned(data, index);
        measurement.recall = mean(measurement.recall_of_query);
        measurement.scanned = mean(measurement.scanned_of_query);
        measurement.milliseconds = fastest * 1000 / data.queries.n;
        method.measurements.push_back(std::move(measurement));
    }
    int64_t entries = 0;
    for (size_t list = 0; list < index.nlist; list++) {
        entries += index.get_list_size(list);
    }
    method.entries_per_vector = double(entries) / index.ntotal;
    return method;
}

/// A PQ codec for residuals to the centroids.
faiss::ProductQuantizer train_codec(
        const Dataset& data,
        Coarse& coarse,
        int64_t code_size) {
    faiss::IndexIVFPQ index(
            &coarse.quantizer, data.base.d, data.nlist, code_size, 8);
    index.pq.cp.niter = kCodecIterations;
    index.pq.cp.max_points_per_centroid = kRowsPerCodeword;
    index.train(data.base.n, data.base.values.data());
    say(
            format("%s: PQ codec of %" PRId64 " bytes trained",
                   data.name.c_str(),
                   code_size));
    return index.pq;
}

/// Measures a trained, empty index that stores each vector once and, if there
/// is a mixture, one with the same codec that stores border vectors twice.
template <class Index>
void measure_both(
        const Dataset& data,
        const Coarse& coarse,
        Index& index,
        Experiment& experiment) {
    const auto add_method = [&](faiss::IndexIVF& filled, bool has_copies) {
        Method method = measure(data, filled);
        method.name = coarse.name + (has_copies ? ", tau = 1/K" : ", one list");
        method.model = coarse.name;
        method.is_reference = coarse.mixture.k == 0;
        method.has_copies = has_copies;
        method.train_seconds = coarse.train_seconds;
        say(
                format("%s, %s, %s: filled and searched",
                       data.name.c_str(),
                       experiment.codec.c_str(),
                       method.name.c_str()));
        experiment.methods.push_back(std::move(method));
    };
    const float* x = data.base.values.data();
    index.add(data.base.n, x);
    add_method(index, false);
    if (coarse.mixture.k > 0) {
        index.reset(); // keeps the codec
        faiss_flashgmm::IndexIVFMultiAssign<Index> multi(std::move(index));
        multi.set_mixture(coarse.mixture);
        multi.add(data.base.n, x);
        add_method(multi, true);
    }
}

void run_dataset(const Dataset& data, std::vector<Experiment>& experiments) {
    std::vector<Coarse> all;
    all.push_back(train_kmeans(data));
    for (const FlashGMMOptions& gmm : mixtures_to_show()) {
        all.push_back(train_mixture(data, gmm));
    }

    Experiment flat;
    flat.dataset = data.name;
    flat.codec = "Flat";
    flat.n = data.base.n;
    flat.d = data.base.d;
    flat.nlist = data.nlist;
    flat.nqueries = data.queries.n;
    flat.threads = omp_get_max_threads();
    Experiment pq = flat;
    const int64_t code_size = data.base.d / kDimensionsPerByte;
    pq.codec = format("PQ%" PRId64, code_size);
    // One codec for all, so that chance in its training favours none.
    const faiss::ProductQuantizer codec =
            train_codec(data, all.front(), code_size);
    for (Coarse& coarse : all) {
        faiss::IndexIVFFlat flat_index(
                &coarse.quantizer, data.base.d, data.nlist);
        flat_index.is_trained = true;
        measure_both(data, coarse, flat_index, flat);

        faiss::IndexIVFPQ pq_index(
                &coarse.quantizer, data.base.d, data.nlist, code_size, 8);
        pq_index.pq = codec;
        pq_index.precompute_table();
        pq_index.is_trained = true;
        measure_both(data, coarse, pq_index, pq);
    }
    experiments.push_back(std::move(flat));
    experiments.push_back(std::move(pq));
}

void print_introduction() {
    const std::string by_default = model_name(FlashGMMOptions());
    std::printf(
            R"(
Each index splits the vectors into K lists, one around each centroid. A search
reads the nprobe lists whose centroids are nearest to the query. Compared is
what places the centroids (k-means, or a Gaussian mixture of K components) and
whether a vector near a border is stored in one list or in two:

  one list         every vector is stored once
  tau = 1/K        also in a second list, if a second component of the mixture
                   has a responsibility above 1/K for it

  free mixture     every component has its own variance and weight
  tied mixture     one variance for all, equal weights
                   (%s is the library's default)

  Flat             the vectors themselves are stored: only lists cost recall
  PQ25             codes of 25 bytes, of one codec for all methods: distances
                   are estimates, which costs recall of its own

  recall@10        share of the true 10 nearest that the search found
  scanned          entries read for a query, both copies counted: the work
  ms a query       of a batch on %d threads, fastest of %d
  entries a vector what is stored; 1.50: half of the vectors twice

All train on the same rows with the same seed. k-means runs %d iterations; a
mixture %d of k-means on a sample, then %d of its own.

)",
            by_default.c_str(),
            omp_get_max_threads(),
            kTimedRuns,
            kIterations + FlashGMMOptions().init_iterations,
            FlashGMMOptions().init_iterations,
            kIterations);
    std::fflush(stdout); // before the progress, which goes to stderr
}

void run(const std::string& data_directory, const std::string& out) {
    print_introduction();
    const std::vector<Dataset> datasets = {
            load(data_directory, "GloVe", "glove50k", ".f16bin", 256),
            load(data_directory, "SIFT", "sift10k", ".bvecs", 64)};
    std::filesystem::create_directories(out);
    std::vector<Experiment> experiments;
    for (const Dataset& data : datasets) {
        run_dataset(data, experiments);
    }

    for (const Experiment& experiment : experiments) {
        print_table(experiment);
    }
    std::printf(
            "\nWhat it shows\n"
            "\nWhat a recall costs, between the columns above: lists probed, "
            "entries scanned,\nand the latter as a share of what k-means "
            "scans (below 1: less work; +- is twice\nthe standard error, by "
            "chance in the choice of the queries).\n");
    for (const Experiment& experiment : experiments) {
        print_findings(experiment);
    }
    print_summary(experiments);
    const std::string report = out + "/report.json";
    const std::string figure = out + "/recall_vs_nprobe.svg";
    write_json(experiments, report);
    write_figure(experiments, "Flat", figure);
    std::printf(
            "\nWritten in %.0f s: %s (all numbers), %s\n",
            since_start.seconds(),
            report.c_str(),
            figure.c_str());
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(
                stderr,
                "usage: flashgmm_demo <data directory> <output directory>\n");
        return 2;
    }
    try {
        run(argv[1], argv[2]);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "flashgmm_demo: %s\n", error.what());
        return 1;
    }
    return 0;
}
