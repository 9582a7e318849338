#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <faiss/IndexIVF.h>
#include <faiss/impl/FaissException.h>

#include <faiss_flashgmm/IVFMultiAssign.h>
#include <faiss_flashgmm/index_factory.h>
#include <faiss_flashgmm/index_tree.h>
#include <faiss_flashgmm/io/Hdf5Rows.h>
#include <faiss_flashgmm/io/VectorFile.h>
#include <faiss_flashgmm/io/open_vectors.h>
#include <faiss_flashgmm/tools/Console.h>
#include <faiss_flashgmm/tools/commands.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Json.h>

namespace faiss_flashgmm {

namespace {

/// Rows whose norms are looked at.
constexpr int64_t kSample = 1000;

struct Info {
    Common common;
    std::vector<std::string> files;

    void run();

   private:
    void describe_index(const std::string& path) const;
    void describe_vectors(const std::string& path) const;
};

/// The factory string of an index, if it has one.
std::string description_of(const faiss::Index& index) {
    try {
        return index_description(index);
    } catch (const faiss::FaissException&) {
        return "an index that no description builds";
    }
}

void Info::describe_index(const std::string& path) const {
    const std::unique_ptr<faiss::Index> index = open_index(path);
    const std::string description = description_of(*index);
    JsonObject json;
    json.add("file", path)
            .add("index", description)
            .add("metric", index->metric_type == faiss::METRIC_L2 ? "l2" : "ip")
            .add("n", index->ntotal)
            .add("d", index->d)
            .add("trained", index->is_trained);
    std::string text = format(
            "%s\n  %s, %s, %s vectors of %d dimensions",
            path.c_str(),
            description.c_str(),
            index->metric_type == faiss::METRIC_L2 ? "L2" : "inner product",
            short_number(double(index->ntotal)).c_str(),
            index->d);
    const IVFMultiAssign* ours = find_multi_assign(*index);
    if (ours != nullptr) {
        const ListStatistics lists = ours->list_statistics();
        const size_t longest = lists.entries.empty()
                ? 0
                : *std::max_element(lists.entries.begin(), lists.entries.end());
        json.add("entries", ours->nentries())
                .add("entries_per_vector", ours->entries_per_vector())
                .add("imbalance", lists.imbalance)
                .add("longest_list", longest);
        text += format(
                "\n  %.3f entries a vector, imbalance %.2f, longest list %zu",
                ours->entries_per_vector(),
                lists.imbalance,
                longest);
    }
    common.print(json, text);
}

void Info::describe_vectors(const std::string& path) const {
    const std::unique_ptr<RowSource> source = open_vectors(path);
    std::string type = "HDF5";
    if (const auto* file = dynamic_cast<const VectorFile*>(source.get())) {
        type = name_of(file->layout().type);
    }
    SampledRows sample(*source, sample_indices(source->size(), kSample, 1));
    const Matrix<float> rows = read_all(sample);
    double least = HUGE_VAL;
    double most = 0;
    for (int64_t i = 0; i < rows.n; i++) {
        double squared = 0;
        for (int64_t j = 0; j < rows.d; j++) {
            squared += double(rows.row(i)[j]) * rows.row(i)[j];
        }
        least = std::min(least, std::sqrt(squared));
        most = std::max(most, std::sqrt(squared));
    }
    JsonObject json;
    json.add("file", path)
            .add("n", source->size())
            .add("d", source->dim())
            .add("type", type);
    std::string text =
            format("%s\n  %lld rows of %lld elements of %s",
                   path.c_str(),
                   static_cast<long long>(source->size()),
                   static_cast<long long>(source->dim()),
                   type.c_str());
    if (rows.n > 0) {
        json.add("least_norm", least).add("largest_norm", most);
        text +=
                format("\n  norms of %lld of them: %.4g to %.4g",
                       static_cast<long long>(rows.n),
                       least,
                       most);
    }
    common.print(json, text);
}

void Info::run() {
    common.apply();
    for (const std::string& path : files) {
        // Anything whose name is that of no vector file is an index.
        bool vectors = path.find(".hdf5") != path.npos ||
                path.find(".h5") != path.npos;
        try {
            VectorFormat::of(path);
            vectors = true;
        } catch (const Error&) {
        }
        vectors ? describe_vectors(path) : describe_index(path);
    }
}

} // namespace

void add_info(CLI::App& program) {
    const auto info = std::make_shared<Info>();
    CLI::App& command = *program.add_subcommand(
            "info", "Say what files of vectors and of indexes hold");
    command.footer("Example: flashgmm info base.fvecs base.index");
    command.add_option("files", info->files, "Vectors, mixtures or indexes")
            ->type_name("FILE")
            ->required();
    info->common.add_to(command);
    command.callback([info] { info->run(); });
}

} // namespace faiss_flashgmm
