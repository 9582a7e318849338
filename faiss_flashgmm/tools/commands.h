#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include <faiss/Index.h>

#include <faiss_flashgmm/FlashGMMClustering.h>
#include <faiss_flashgmm/em/Backend.h>
#include <faiss_flashgmm/utils/Json.h>

namespace faiss_flashgmm {

/// An option whose values have names; shows the name of the present one as the
/// default.
template <class T>
CLI::Option* add_choice(
        CLI::App& command,
        const std::string& name,
        T& value,
        const std::map<std::string, T>& names,
        const std::string& help) {
    std::string present;
    for (const auto& [text, meaning] : names) {
        if (meaning == value) {
            present = text;
        }
    }
    return command.add_option(name, value, help)
            ->transform(CLI::CheckedTransformer(names).description(""))
            ->type_name("NAME")
            ->default_str(present);
}

/// Options that all commands share.
struct Common {
    bool json = false;
    int threads = 0; ///< 0: all
    uint64_t seed = 1234;
    std::string device = "cpu";

    void add_to(CLI::App& command);

    /// For commands that draw random numbers.
    void add_seed(CLI::App& command);

    /// For commands that fit, assign or find neighbours.
    void add_device(CLI::App& command);

    /// To be called when a command begins.
    void apply() const;

    /// What a command has to say, as one line of JSON or as text.
    void print(const JsonObject& line, const std::string& text) const;

    std::unique_ptr<Backend> make_backend() const;

    std::unique_ptr<FlashGMMClustering> make_clustering(
            int64_t d,
            int64_t k,
            const faiss::ClusteringParameters& cp,
            const FlashGMMOptions& gmm) const;
};

/// For --device; not defined in a program with CUDA.
[[noreturn]] void fail_without_cuda(const std::string& device);

/// The options of a fit, shared by fit and build.
struct FitOptions {
    faiss::ClusteringParameters cp;
    FlashGMMOptions gmm;
    int64_t sample = 256; ///< rows a component

    FitOptions();
    void add_to(CLI::App& command);
};

/// An index of write_index(), or of FAISS; copies in the lists of the latter
/// are recognized. Errors name the file.
std::unique_ptr<faiss::Index> open_index(const std::string& path);

void add_metric(CLI::App& command, faiss::MetricType& metric);
void add_rows(CLI::App& command, int64_t& rows);

/// An option or a positional that names a file.
CLI::Option* add_file(
        CLI::App& command,
        const std::string& name,
        std::string& path,
        const std::string& help);

// Each adds its command to the program; the command runs by callback.
void add_assign(CLI::App& program);
void add_bench(CLI::App& program);
void add_build(CLI::App& program);
void add_convert(CLI::App& program);
void add_eval(CLI::App& program);
void add_fit(CLI::App& program);
void add_groundtruth(CLI::App& program);
void add_info(CLI::App& program);
void add_search(CLI::App& program);

} // namespace faiss_flashgmm
