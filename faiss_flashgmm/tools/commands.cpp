#include <faiss_flashgmm/tools/commands.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>

#include <omp.h>

#include <faiss/impl/FaissException.h>
#include <faiss/index_io.h>

#include <faiss_flashgmm/cpu/CpuBackend.h>
#include <faiss_flashgmm/index_io.h>
#include <faiss_flashgmm/make_multi_assign.h>
#include <faiss_flashgmm/plain_message.h>
#include <faiss_flashgmm/tools/Console.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/device_name.h>

#if FLASHGMM_TOOLS_CUDA
#include <faiss_flashgmm/GpuFlashGMMClustering.h>
#endif

namespace faiss_flashgmm {

#if !FLASHGMM_TOOLS_CUDA
void fail_without_cuda(const std::string& device) {
    FLASHGMM_THROW_FMT(
            "--device %s: this program was built without CUDA "
            "(-DFLASHGMM_CUDA=ON)",
            device.c_str());
}
#endif

void Common::add_to(CLI::App& command) {
    command.add_flag(
            "--json", json, "Print JSON, one object a line, instead of text");
    command.add_option("--threads", threads, "Threads; 0: as many as cores")
            ->check(CLI::NonNegativeNumber)
            ->capture_default_str();
}

void Common::add_seed(CLI::App& command) {
    command.add_option("--seed", seed, "Seed of all random numbers")
            ->capture_default_str();
}

void Common::add_device(CLI::App& command) {
    command.add_option(
                   "--device",
                   device,
                   "cpu, cuda, or cuda:N,... for chosen devices")
            ->check([](const std::string& text) {
                try {
                    cuda_devices_of(text);
                } catch (const Error& error) {
                    return std::string(error.what());
                }
                return std::string();
            })
            ->capture_default_str();
}

void Common::apply() const {
    if (threads > 0) {
        omp_set_num_threads(threads);
    }
    catch_interrupts();
}

void Common::print(const JsonObject& line, const std::string& text) const {
    std::printf("%s\n", json ? line.str().c_str() : text.c_str());
    std::fflush(stdout);
}

std::unique_ptr<Backend> Common::make_backend() const {
    const std::vector<int> devices = cuda_devices_of(device);
    if (devices.empty()) {
        return std::make_unique<CpuBackend>();
    }
#if FLASHGMM_TOOLS_CUDA
    CudaOptions options;
    options.devices = devices;
    return std::make_unique<CudaBackend>(options);
#else
    fail_without_cuda(device);
#endif
}

std::unique_ptr<FlashGMMClustering> Common::make_clustering(
        int64_t d,
        int64_t k,
        const faiss::ClusteringParameters& cp,
        const FlashGMMOptions& gmm) const {
    constexpr int64_t kMost = std::numeric_limits<int>::max();
    FLASHGMM_THROW_IF_NOT_FMT(
            d <= kMost && k <= kMost,
            "%lld components of %lld dimensions",
            static_cast<long long>(k),
            static_cast<long long>(d));
    const std::vector<int> devices = cuda_devices_of(device);
    if (devices.empty()) {
        return std::make_unique<FlashGMMClustering>(d, k, cp, gmm);
    }
#if FLASHGMM_TOOLS_CUDA
    auto clustering = std::make_unique<GpuFlashGMMClustering>(d, k, cp, gmm);
    clustering->cuda.devices = devices;
    return clustering;
#else
    fail_without_cuda(device);
#endif
}

FitOptions::FitOptions() {
    cp.niter = 25;
}

void FitOptions::add_to(CLI::App& command) {
    const auto number = [&](const char* name, int& value, const char* help) {
        return command.add_option(name, value, help)
                ->check(CLI::PositiveNumber)
                ->capture_default_str();
    };
    number("--iterations", cp.niter, "EM iterations");
    number("--redo", cp.nredo, "Runs, of which the likeliest is kept");
    command.add_option(
                   "--sample",
                   sample,
                   "Rows a component to train on, drawn at random; 0: all")
            ->check(CLI::NonNegativeNumber)
            ->capture_default_str();
    add_choice(
            command,
            "--variance",
            gmm.variance,
            {{"tied", VarianceModel::tied},
             {"per_component", VarianceModel::per_component}},
            "tied (one for all components) or per_component");
    add_choice(
            command,
            "--weights",
            gmm.weights,
            {{"uniform", WeightModel::uniform}, {"free", WeightModel::free}},
            "uniform or free (one a component)");
    add_choice(
            command,
            "--init",
            gmm.init,
            {{"lloyd", Initialization::lloyd},
             {"random_rows", Initialization::random_rows},
             {"kmeans_pp", Initialization::kmeans_pp}},
            "First means: lloyd (a short k-means), random_rows or kmeans_pp");
    command.add_option(
                   "--tol",
                   gmm.tol,
                   "Stop when an iteration gains less log-likelihood, relatively")
            ->check(CLI::NonNegativeNumber)
            ->capture_default_str();
}

std::unique_ptr<faiss::Index> open_index(const std::string& path) {
    try {
        if (is_index_file(path.c_str())) {
            return read_index(path.c_str());
        }
        std::unique_ptr<faiss::Index> index(faiss::read_index(path.c_str()));
        try {
            make_multi_assign(index);
        } catch (const faiss::FaissException&) {
            // No index that could hold copies: good as it is.
        }
        return index;
    } catch (const faiss::FaissException& error) {
        FLASHGMM_THROW_FMT(
                "%s: %s", path.c_str(), plain_message(error).c_str());
    }
}

void add_metric(CLI::App& command, faiss::MetricType& metric) {
    add_choice<faiss::MetricType>(
            command,
            "--metric",
            metric,
            {{"l2", faiss::METRIC_L2}, {"ip", faiss::METRIC_INNER_PRODUCT}},
            "l2 or ip (inner product)");
}

void add_rows(CLI::App& command, int64_t& rows) {
    command.add_option("--rows", rows, "Use so many of the first rows; -1: all")
            ->capture_default_str();
}

CLI::Option* add_file(
        CLI::App& command,
        const std::string& name,
        std::string& path,
        const std::string& help) {
    return command.add_option(name, path, help)->type_name("FILE");
}

} // namespace faiss_flashgmm
