#include <memory>
#include <string>

#include <faiss/IndexFlat.h>

#include <faiss_flashgmm/io/MixtureFile.h>
#include <faiss_flashgmm/io/PendingFile.h>
#include <faiss_flashgmm/io/open_vectors.h>
#include <faiss_flashgmm/tools/Console.h>
#include <faiss_flashgmm/tools/commands.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Json.h>
#include <faiss_flashgmm/utils/Timer.h>

namespace faiss_flashgmm {

namespace {

struct Fit {
    Common common;
    FitOptions options;
    std::string vectors;
    std::string output;
    int64_t k = 1024;
    int64_t rows = -1;
    bool spherical = false;

    void run();
};

void Fit::run() {
    common.apply();
    const Timer timer;
    const std::unique_ptr<RowSource> source = open_vectors(vectors, rows);
    faiss::ClusteringParameters cp = options.cp;
    cp.seed = int(common.seed);
    cp.spherical = spherical;
    // FAISS has no "all": as many rows a component as there are rows.
    const int64_t most = options.sample > 0 ? options.sample : source->size();
    cp.max_points_per_centroid = int(std::min<int64_t>(most, 1 << 30));
    const auto clustering =
            common.make_clustering(source->dim(), k, cp, options.gmm);
    ProgressLine line("fit", "rows", source->size());
    clustering->gmm.progress = [&](const Progress& progress) {
        line.update(progress);
    };
    faiss::IndexFlatL2 means(int(source->dim()));
    clustering->train(*source, means);
    write_mixture(clustering->mixture, output);

    const IterationStats& last = clustering->em_stats.back();
    const double seconds = timer.seconds();
    common.print(
            JsonObject()
                    .add("n", source->size())
                    .add("d", source->dim())
                    .add("k", k)
                    .add("iterations", clustering->em_stats.size())
                    .add("converged", clustering->converged)
                    .add("log_likelihood", last.log_likelihood)
                    .add("imbalance", last.imbalance)
                    .add("empty", last.empty)
                    .add("distinct_means", clustering->distinct_centroids)
                    .add("seconds", seconds)
                    .add("output", output),
            format("%lld components for %s rows of %lld dimensions in %.2f s\n"
                   "log-likelihood a row %.4f after %zu iterations%s; imbalance "
                   "%.2f; %lld distinct means\n"
                   "%s",
                   static_cast<long long>(k),
                   short_number(double(source->size())).c_str(),
                   static_cast<long long>(source->dim()),
                   seconds,
                   last.log_likelihood,
                   clustering->em_stats.size(),
                   clustering->converged ? " (converged)" : "",
                   last.imbalance,
                   static_cast<long long>(clustering->distinct_centroids),
                   output.c_str()));
}

} // namespace

void add_fit(CLI::App& program) {
    const auto fit = std::make_shared<Fit>();
    CLI::App& command =
            *program.add_subcommand("fit", "Fit a Gaussian mixture to vectors");
    command.footer(
            "Example: flashgmm fit base.fvecs -k 4096 -o mixture.npy\n"
            "The output is an array of float64 and shape (k, d + 2): weight, "
            "variance, mean.");
    add_file(command, "vectors", fit->vectors, "Vectors to fit to")->required();
    add_file(command, "-o,--output", fit->output, "The mixture, a .npy file")
            ->required();
    command.add_option("-k,--components", fit->k, "Components of the mixture")
            ->check(CLI::PositiveNumber)
            ->capture_default_str();
    add_rows(command, fit->rows);
    command.add_flag(
            "--spherical", fit->spherical, "Means of norm 1 (cosine search)");
    fit->options.add_to(command);
    fit->common.add_seed(command);
    fit->common.add_device(command);
    fit->common.add_to(command);
    command.callback([fit] { fit->run(); });
}

} // namespace faiss_flashgmm
