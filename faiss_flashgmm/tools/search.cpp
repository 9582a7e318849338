#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <faiss/IndexIVF.h>

#include <faiss_flashgmm/compat.h>
#include <faiss_flashgmm/index_tree.h>
#include <faiss_flashgmm/io/VectorWriter.h>
#include <faiss_flashgmm/io/open_vectors.h>
#include <faiss_flashgmm/tools/Console.h>
#include <faiss_flashgmm/tools/commands.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Json.h>
#include <faiss_flashgmm/utils/Timer.h>

namespace faiss_flashgmm {

namespace {

/// Queries answered at once.
constexpr int64_t kChunk = 4096;

struct Search {
    Common common;
    std::string index_file;
    std::string queries;
    std::string output;
    std::string distances;
    int64_t k = 10;
    int64_t nprobe = 16;

    void run();
};

void Search::run() {
    common.apply();
    const std::unique_ptr<faiss::Index> index = open_index(index_file);
    const std::unique_ptr<RowSource> source = open_vectors(queries);
    FLASHGMM_THROW_IF_NOT_FMT(
            source->dim() == index->d,
            "%s is of %lld dimensions, %s of %d",
            queries.c_str(),
            static_cast<long long>(source->dim()),
            index_file.c_str(),
            index->d);
    if (faiss::IndexIVF* ivf = try_extract_index_ivf(index.get())) {
        ivf->nprobe = nprobe;
    }
    VectorWriter ids(output, k, ElementType::int32);
    std::optional<VectorWriter> values;
    if (!distances.empty()) {
        values.emplace(distances, k);
    }
    const int64_t n = source->size();
    std::vector<float> found_distances;
    std::vector<idx_t> found_ids;
    std::vector<float> buffer;
    double seconds = 0;
    ProgressLine line("search", "queries", n);
    for (int64_t begin = 0; begin < n; begin += kChunk) {
        const int64_t count = std::min(kChunk, n - begin);
        const float* const x = read_floats(*source, begin, count, buffer);
        found_distances.resize(count * k);
        found_ids.resize(count * k);
        const Timer timer;
        index->search(count, x, k, found_distances.data(), found_ids.data());
        seconds += timer.seconds();
        ids.append(count, found_ids.data());
        if (values) {
            values->append(count, found_distances.data());
        }
        line.update(begin + count);
    }
    ids.finish();
    if (values) {
        values->finish();
    }
    const double rate = double(n) / seconds;
    common.print(
            JsonObject()
                    .add("queries", n)
                    .add("k", k)
                    .add("nprobe", nprobe)
                    .add("queries_per_second", rate)
                    .add("output", output),
            format("%s queries, %s/s\n%s",
                   short_number(double(n)).c_str(),
                   short_number(rate).c_str(),
                   output.c_str()));
}

} // namespace

void add_search(CLI::App& program) {
    const auto search = std::make_shared<Search>();
    CLI::App& command =
            *program.add_subcommand("search", "Answer queries from an index");
    command.footer(
            "Example: flashgmm search base.index queries.fvecs -k 10 "
            "--nprobe 16 -o found.ivecs\n"
            "No id is found twice for a query; -1 stands for none.");
    add_file(command, "index", search->index_file, "Output of build")
            ->required();
    add_file(command, "queries", search->queries, "Vectors to look for")
            ->required();
    add_file(
            command,
            "-o,--output",
            search->output,
            "Ids, k a query, nearest first (.ivecs .ibin .npy)")
            ->required();
    add_file(
            command,
            "--distances",
            search->distances,
            "Distances as FAISS gives them (.fvecs .fbin .npy)");
    command.add_option("-k", search->k, "Neighbours a query")
            ->check(CLI::PositiveNumber)
            ->capture_default_str();
    command.add_option("--nprobe", search->nprobe, "Lists probed a query")
            ->check(CLI::PositiveNumber)
            ->capture_default_str();
    search->common.add_to(command);
    command.callback([search] { search->run(); });
}

} // namespace faiss_flashgmm
