#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <faiss/Index.h>
#include <faiss/IndexIVF.h>

#include <faiss_flashgmm/IVFMultiAssign.h>
#include <faiss_flashgmm/index_factory.h>
#include <faiss_flashgmm/index_io.h>
#include <faiss_flashgmm/index_tree.h>
#include <faiss_flashgmm/io/open_vectors.h>
#include <faiss_flashgmm/tools/Console.h>
#include <faiss_flashgmm/tools/commands.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Json.h>
#include <faiss_flashgmm/utils/Timer.h>

namespace faiss_flashgmm {

namespace {

/// Rows added at once.
constexpr int64_t kChunk = 1 << 16;

struct Build {
    Common common;
    FitOptions options;
    std::string vectors;
    std::string training;
    std::string output;
    std::string description;
    int64_t rows = -1;
    faiss::MetricType metric = faiss::METRIC_L2;

    void run();

   private:
    std::string default_description(int64_t n) const;
    void train(faiss::Index& index) const;
    void add(faiss::Index& index, RowSource& source) const;
};

/// Lists by the usual rule of FAISS: a power of two near 4 sqrt(n), so that
/// some tens of rows are left for each.
std::string Build::default_description(int64_t n) const {
    int64_t nlist = 1;
    while (nlist * nlist < 4 * n && nlist < (1 << 20)) {
        nlist *= 2;
    }
    return format(
            "IVF%lld_GMM,Flat,MA(posterior)", static_cast<long long>(nlist));
}

void Build::train(faiss::Index& index) const {
    const std::string& path = training.empty() ? vectors : training;
    const std::unique_ptr<RowSource> source =
            open_vectors(path, training.empty() ? rows : -1);
    faiss::IndexIVF* const ivf = try_extract_index_ivf(&index);
    ProgressLine line("train", "rows", source->size());
    int64_t most = source->size();
    if (ivf != nullptr) {
        ivf->cp = options.cp;
        ivf->cp.seed = int(common.seed);
        if (auto* ours = dynamic_cast<IVFMultiAssign*>(ivf)) {
            ours->gmm = options.gmm;
            ours->gmm.progress = [&line](const Progress& progress) {
                line.update(progress);
            };
        }
        if (options.sample > 0) {
            // A codec may want 256 * 256 rows of its own.
            most = std::max<int64_t>(
                    options.sample * int64_t(ivf->nlist), 1 << 16);
            ivf->cp.max_points_per_centroid = int(options.sample);
        } else {
            ivf->cp.max_points_per_centroid =
                    int(std::min<int64_t>(most, 1 << 30));
        }
    }
    SampledRows sample(
            *source, sample_indices(source->size(), most, common.seed));
    const Matrix<float> rows_in_memory = read_all(sample);
    index.train(rows_in_memory.n, rows_in_memory.values.data());
    if (auto* ours = dynamic_cast<IVFMultiAssign*>(ivf)) {
        ours->gmm.progress = nullptr; // the line ends here
    }
}

void Build::add(faiss::Index& index, RowSource& source) const {
    ProgressLine line("add", "vectors", source.size());
    std::vector<float> buffer;
    for (int64_t begin = 0; begin < source.size(); begin += kChunk) {
        const int64_t count = std::min(kChunk, source.size() - begin);
        index.add(count, read_floats(source, begin, count, buffer));
        line.update(begin + count);
    }
}

void Build::run() {
    common.apply();
    const std::unique_ptr<RowSource> source = open_vectors(vectors, rows);
    FLASHGMM_THROW_IF_NOT_FMT(
            source->dim() <= std::numeric_limits<int>::max(),
            "%s: %lld dimensions",
            vectors.c_str(),
            static_cast<long long>(source->dim()));
    const std::string what = description.empty()
            ? default_description(source->size())
            : description;
    const std::unique_ptr<faiss::Index> index =
            index_factory(int(source->dim()), what.c_str(), metric);
    const Timer train_timer;
    train(*index);
    const double train_seconds = train_timer.seconds();
    const Timer add_timer;
    add(*index, *source);
    const double add_seconds = add_timer.seconds();
    write_index(index.get(), output.c_str());

    const IVFMultiAssign* ours = find_multi_assign(*index);
    const double entries = ours ? ours->entries_per_vector() : 1;
    common.print(
            JsonObject()
                    .add("index", what)
                    .add("n", index->ntotal)
                    .add("d", index->d)
                    .add("entries_per_vector", entries)
                    .add("train_seconds", train_seconds)
                    .add("add_seconds", add_seconds)
                    .add("output", output),
            format("%s over %s vectors of %d dimensions\n"
                   "trained in %s, added in %s (%s vectors/s); %.2f entries a "
                   "vector\n%s",
                   what.c_str(),
                   short_number(double(index->ntotal)).c_str(),
                   index->d,
                   duration(train_seconds).c_str(),
                   duration(add_seconds).c_str(),
                   short_number(double(index->ntotal) / add_seconds).c_str(),
                   entries,
                   output.c_str()));
}

} // namespace

void add_build(CLI::App& program) {
    const auto build = std::make_shared<Build>();
    CLI::App& command = *program.add_subcommand(
            "build", "Train an index, add vectors, and store it");
    command.footer(
            "Example: flashgmm build base.fvecs -o base.index "
            "--index 'IVF4096_GMM,PQ32x4fs,MA(demand,1.5)'\n"
            "An index is a string of faiss::index_factory and two more parts: "
            "IVFn_GMM has n lists\nthat a mixture finds instead of k-means, "
            "MA(policy,limit) keeps vectors near a border in two\nlists: "
            "MA(posterior), MA(nearest), MA(soar), MA(demand), with at most so "
            "many entries a vector.\nThe options of the fit are for "
            "IVFn_GMM.");
    add_file(command, "vectors", build->vectors, "Vectors to index")
            ->required();
    add_file(command, "-o,--output", build->output, "The index")->required();
    command.add_option(
            "--index",
            build->description,
            "What to build, see below; by default IVFn_GMM,Flat,MA(posterior) "
            "with n a power of two, 2 to 4 sqrt(vectors)");
    add_file(command, "--train", build->training, "Other vectors to train on");
    add_rows(command, build->rows);
    add_metric(command, build->metric);
    build->options.add_to(command);
    build->common.add_seed(command);
    build->common.add_to(command);
    command.callback([build] { build->run(); });
}

} // namespace faiss_flashgmm
