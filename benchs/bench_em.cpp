// One EM iteration of this project against one k-means iteration of FAISS:
// same rows, same starting means, same threads, same process, by turns.
//
//     bench_em --n 200000 --d 128 --k 1024 --threads 2 --json results.jsonl
//     bench_em --memory --n 1000000       peak memory at n / 10 and at n rows

#include <malloc.h>
#include <omp.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <faiss/Clustering.h>
#include <faiss/IndexFlat.h>

#include <faiss_flashgmm/FlashGMMClustering.h>
#include <faiss_flashgmm/io/open_vectors.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Json.h>

// OpenBLAS keeps its own number of threads; another BLAS has no such function.
extern "C" void openblas_set_num_threads(int) __attribute__((weak));

namespace {

using faiss_flashgmm::FlashGMMClustering;
using faiss_flashgmm::FlashGMMOptions;
using faiss_flashgmm::format;
using faiss_flashgmm::JsonObject;

struct Options {
    int64_t n = 200'000;
    int64_t d = 128;
    int64_t k = 1024;
    int threads = omp_get_max_threads();
    int runs = 7;
    bool memory = false;
    std::string json; ///< append results to this file
    std::string data; ///< rows from this file instead of drawn ones
};

constexpr char kUsage[] =
        "bench_em [--n ROWS] [--d DIM] [--k COMPONENTS] [--threads T]\n"
        "         [--runs R] [--data FILE.f16bin|.u8bin|.bvecs]\n"
        "         [--memory] [--json FILE]\n";

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; i++) {
        const std::string name = argv[i];
        if (name == "--memory") {
            options.memory = true;
            continue;
        }
        FLASHGMM_THROW_IF_NOT_FMT(
                i + 1 < argc, "%s: no value\n%s", name.c_str(), kUsage);
        const char* value = argv[++i];
        if (name == "--json") {
            options.json = value;
            continue;
        }
        if (name == "--data") {
            options.data = value;
            continue;
        }
        const int64_t number = std::atoll(value);
        FLASHGMM_THROW_IF_NOT_FMT(
                number > 0, "%s %s: not positive", name.c_str(), value);
        if (name == "--n") {
            options.n = number;
        } else if (name == "--d") {
            options.d = number;
        } else if (name == "--k") {
            options.k = number;
        } else if (name == "--threads") {
            options.threads = int(number);
        } else if (name == "--runs") {
            options.runs = int(number);
        } else {
            FLASHGMM_THROW_FMT("unknown option %s\n%s", name.c_str(), kUsage);
        }
    }
    return options;
}

/** k overlapping blobs near a space of few dimensions, as real vectors are:
 * a row then has about four components that matter. (Blobs that fill all d
 * dimensions have one each.)
 */
std::vector<float> draw_blobs(int64_t n, int64_t d, int64_t k) {
    const int64_t latent = std::min<int64_t>(d, 16);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const auto draw = [&](int64_t count) {
        std::vector<float> values(count);
        for (float& value : values) {
            value = normal(random);
        }
        return values;
    };
    const std::vector<float> centers = draw(k * latent);
    const std::vector<float> basis = draw(latent * d);
    std::vector<float> x(n * d);
    std::vector<float> z(latent);
    for (int64_t i = 0; i < n; i++) {
        const float* center = centers.data() + random() % k * latent;
        for (int64_t j = 0; j < latent; j++) {
            z[j] = center[j] + normal(random);
        }
        float* row = x.data() + i * d;
        for (int64_t j = 0; j < d; j++) {
            row[j] = 0.3f * normal(random);
        }
        for (int64_t l = 0; l < latent; l++) {
            for (int64_t j = 0; j < d; j++) {
                row[j] += z[l] * basis[l * d + j];
            }
        }
    }
    return x;
}

/// Means in the middle of a fit, where both sides start: a short k-means on a
/// sample.
std::vector<float> starting_means(const Options& options, const float* x) {
    faiss::ClusteringParameters cp;
    cp.niter = 5;
    cp.min_points_per_centroid = 1;
    cp.max_points_per_centroid = 64;
    faiss::Clustering clustering(options.d, options.k, cp);
    faiss::IndexFlatL2 index(options.d);
    clustering.train(options.n, x, index);
    return clustering.centroids;
}

/// Two iterations over all rows, without sampling. The second one is timed:
/// nothing that is done once can hide in it.
faiss::ClusteringParameters two_iterations(const Options& options) {
    faiss::ClusteringParameters cp;
    cp.niter = 2;
    cp.min_points_per_centroid = 1;
    cp.max_points_per_centroid = int(options.n / options.k + 1);
    return cp;
}

double time_kmeans(
        const Options& options,
        const float* x,
        const std::vector<float>& means) {
    faiss::Clustering clustering(options.d, options.k, two_iterations(options));
    clustering.centroids = means;
    faiss::IndexFlatL2 index(options.d);
    clustering.train(options.n, x, index);
    const auto& stats = clustering.iteration_stats;
    return stats.at(1).time - stats.at(0).time; // FAISS counts from the start
}

faiss_flashgmm::IterationStats time_em(
        const Options& options,
        const float* x,
        const std::vector<float>& means) {
    FlashGMMClustering clustering(
            options.d, options.k, two_iterations(options));
    clustering.centroids = means;
    faiss::IndexFlatL2 index(options.d);
    clustering.train(options.n, x, index);
    return clustering.em_stats.at(1);
}

/// A field of /proc/self/status, in bytes.
int64_t process_memory(const std::string& field) {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with(field + ":")) {
            return std::atoll(line.c_str() + field.size() + 1) * 1024;
        }
    }
    return 0;
}

/// Peak resident memory during work() over what was resident before it, or
/// nothing where the kernel does not let a process reset its peak.
template <class Work>
std::optional<int64_t> peak_growth(Work work) {
    malloc_trim(0);
    std::ofstream("/proc/self/clear_refs") << "5" << std::flush;
    const int64_t before = process_memory("VmRSS");
    const bool is_reset = process_memory("VmHWM") < before + (1 << 20);
    work();
    if (!is_reset) {
        return std::nullopt;
    }
    return process_memory("VmHWM") - before;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t half = values.size() / 2;
    return values.size() % 2 ? values[half]
                             : (values[half - 1] + values[half]) / 2;
}

std::string cpu_name() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        if (line.starts_with("model name")) {
            return line.substr(line.find(':') + 2);
        }
    }
    utsname machine = {};
    uname(&machine);
    return machine.machine;
}

std::string today() {
    const std::time_t now = std::time(nullptr);
    char text[16];
    std::strftime(text, sizeof(text), "%Y-%m-%d", std::gmtime(&now));
    return text;
}

std::string wait_policy() {
    const char* policy = std::getenv("OMP_WAIT_POLICY");
    return policy ? policy : "unset";
}

std::string base_name(const std::string& path) {
    return path.substr(path.rfind('/') + 1);
}

/// What was measured: the first fields of a line.
JsonObject describe(const Options& options, const char* bench) {
    return JsonObject()
            .add("bench", bench)
            .add("backend", "cpu")
            .add("data",
                 options.data.empty() ? "blobs" : base_name(options.data))
            .add("n", options.n)
            .add("d", options.d)
            .add("k", options.k)
            .add("threads", options.threads);
}

/// How to measure the same again.
std::string command(const Options& options) {
    return format("OMP_WAIT_POLICY=%s bench_em --n %" PRId64 " --d %" PRId64
                  " --k %" PRId64 " --threads %d --runs %d",
                  wait_policy().c_str(),
                  options.n,
                  options.d,
                  options.k,
                  options.threads,
                  options.runs) +
            (options.data.empty() ? "" : " --data " + base_name(options.data)) +
            (options.memory ? " --memory" : "");
}

/// Adds where and when, and appends the line to the file or prints it.
void write_line(const Options& options, JsonObject object) {
    const std::string line =
            object.add("command", command(options))
                    .add("faiss",
                         format("%d.%d.%d",
                                FAISS_VERSION_MAJOR,
                                FAISS_VERSION_MINOR,
                                FAISS_VERSION_PATCH))
                    .add("hardware", cpu_name())
                    .add("cores", sysconf(_SC_NPROCESSORS_ONLN))
                    .add("date", today())
                    .str();
    if (options.json.empty()) {
        std::printf("%s\n", line.c_str());
        return;
    }
    std::ofstream file(options.json, std::ios::app);
    file << line << '\n' << std::flush;
    FLASHGMM_THROW_IF_NOT_FMT(file, "cannot write %s", options.json.c_str());
}

void run_speed(const Options& options, const float* x) {
    const std::vector<float> means = starting_means(options, x);
    faiss_flashgmm::IterationStats em;
    const auto peak = peak_growth([&] { em = time_em(options, x, means); });

    std::vector<double> ours;
    std::vector<double> theirs;
    std::vector<double> ratios;
    std::printf("run   EM, s   k-means, s   ratio\n");
    for (int run = 0; run < options.runs; run++) {
        em = time_em(options, x, means);
        ours.push_back(em.seconds);
        theirs.push_back(time_kmeans(options, x, means));
        ratios.push_back(ours.back() / theirs.back());
        std::printf(
                "%3d %7.4f %12.4f %7.3f\n",
                run + 1,
                ours.back(),
                theirs.back(),
                ratios.back());
    }
    const auto [lowest, highest] =
            std::minmax_element(ratios.begin(), ratios.end());
    std::printf(
            "EM / k-means: median %.3f, between %.3f and %.3f; "
            "%.1f components a row\n"
            "Counted: the second of two iterations over all rows. EM: E-step, "
            "statistics and\nM-step. k-means: assignment, new centroids, "
            "splits, and their way into the index.\n"
            "Not counted, on either side: the check of the rows, sampling, "
            "the first means.\n",
            median(ratios),
            *lowest,
            *highest,
            em.pairs_per_row);

    JsonObject line = describe(options, "em_iteration");
    line.add("runs", options.runs)
            .add("seconds_per_iteration", median(ours))
            .add("faiss_kmeans_seconds_per_iteration", median(theirs))
            .add("ratio_to_faiss_kmeans", median(ratios))
            .add("ratio_min", *lowest)
            .add("ratio_max", *highest)
            .add("pairs_per_row", em.pairs_per_row)
            .add("dropped_mass", em.dropped_mass);
    if (peak) {
        std::printf("Peak memory over the rows: %.1f MB\n", *peak / 1e6);
        line.add("peak_bytes", *peak);
    }
    write_line(options, line);
}

void run_memory(const Options& options, const float* x) {
    const std::vector<float> means = starting_means(options, x);
    Options warm_up = options;
    warm_up.n = options.k;
    time_em(warm_up, x, means); // the buffers that BLAS takes once
    for (const int64_t n : {options.n / 10, options.n}) {
        Options part = options;
        part.n = n;
        const auto peak = peak_growth([&] { time_em(part, x, means); });
        FLASHGMM_THROW_IF_NOT_FMT(
                peak, "/proc/self/clear_refs: cannot reset the peak memory");
        std::printf(
                "%10" PRId64
                " rows of %.1f MB: peak memory over them %.1f MB\n",
                n,
                n * options.d * sizeof(float) / 1e6,
                *peak / 1e6);
        write_line(
                options, describe(part, "em_memory").add("peak_bytes", *peak));
    }
}

void run(Options options) {
    std::vector<float> x;
    if (options.data.empty()) {
        x = draw_blobs(options.n, options.d, options.k);
    } else {
        faiss_flashgmm::Matrix<float> file =
                faiss_flashgmm::read_vectors(options.data);
        options.n = std::min(options.n, file.n);
        options.d = file.d;
        x = std::move(file.values);
    }
    FLASHGMM_THROW_IF_NOT_FMT(
            options.n / (options.memory ? 10 : 1) >= options.k,
            "%" PRId64 " rows are too few for %" PRId64 " components",
            options.n,
            options.k);
    omp_set_num_threads(options.threads);
    if (openblas_set_num_threads) {
        openblas_set_num_threads(options.threads);
    }
    std::printf(
            "%s, %d threads, OMP_WAIT_POLICY %s (passive is best beside other "
            "work)\n%" PRId64 " rows x %" PRId64 ", %" PRId64
            " components, %s\n",
            cpu_name().c_str(),
            options.threads,
            wait_policy().c_str(),
            options.n,
            options.d,
            options.k,
            options.data.empty() ? "drawn blobs" : options.data.c_str());
    if (options.memory) {
        run_memory(options, x.data());
    } else {
        run_speed(options, x.data());
    }
}

} // namespace

int main(int argc, char** argv) {
    if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
        std::fputs(kUsage, stdout);
        return 0;
    }
    try {
        run(parse(argc, argv));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "bench_em: %s\n", error.what());
        return 1;
    }
    return 0;
}
