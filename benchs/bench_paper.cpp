// Fits of this project for bench_paper.py: from a file of rows and the mixture
// to start from, a line of JSON with times and memory.
//
//     bench_paper rows.fbin start.npy --n 100000 --iterations 30
//                 --device cpu|cuda

#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <faiss_flashgmm/cpu/CpuBackend.h>
#include <faiss_flashgmm/em/EMSolver.h>
#include <faiss_flashgmm/io/MixtureFile.h>
#include <faiss_flashgmm/io/open_vectors.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Json.h>
#include <faiss_flashgmm/utils/Timer.h>

#ifdef FLASHGMM_BENCH_CUDA
#include <faiss_flashgmm/gpu/CudaBackend.h>
#endif

namespace {

using namespace faiss_flashgmm;

struct Options {
    std::string rows, start;
    int64_t n = -1;
    int iterations = 30;
    std::string device = "cpu";
};

Options parse(int argc, char** argv) {
    FLASHGMM_THROW_IF_NOT_FMT(
            argc >= 3 && argc % 2 == 1,
            "%s",
            "bench_paper ROWS START [--n ROWS] [--iterations I] "
            "[--device cpu|cuda]");
    Options options{argv[1], argv[2]};
    for (int i = 3; i < argc; i += 2) {
        const std::string name = argv[i];
        const char* value = argv[i + 1];
        if (name == "--n") {
            options.n = std::atoll(value);
        } else if (name == "--iterations") {
            options.iterations = std::atoi(value);
        } else if (name == "--device") {
            options.device = value;
        } else {
            FLASHGMM_THROW_FMT("unknown option %s", name.c_str());
        }
    }
    return options;
}

/// Of this process, without the mapped files.
int64_t private_memory() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("RssAnon:")) {
            return std::atoll(line.c_str() + 8) * 1024;
        }
    }
    return 0;
}

struct Measured {
    double seconds = 0;            ///< of the whole fit
    double seconds_iterations = 0; ///< of its iterations
    int64_t peak_host_bytes = 0;   ///< over what was in use before
    double log_likelihood = 0;
};

Measured fit(
        Backend& backend,
        RowSource& rows,
        const Mixture& start,
        int iterations) {
    Measured measured;
    const int64_t before = private_memory();
    EMOptions options;
    options.niter = iterations;
    options.progress = [&](const Progress&) {
        measured.peak_host_bytes =
                std::max(measured.peak_host_bytes, private_memory() - before);
    };
    const Timer timer;
    const EMResult result =
            EMSolver(backend, options).fit(rows, start.k, &start);
    measured.seconds = timer.seconds();
    for (const IterationStats& s : result.iterations) {
        measured.seconds_iterations += s.seconds;
    }
    measured.log_likelihood = result.iterations.back().log_likelihood;
    return measured;
}

void run(const Options& options) {
    const std::unique_ptr<RowSource> rows =
            open_vectors(options.rows, options.n);
    const Mixture start = read_mixture(options.start);
    JsonObject line;
    line.add("n", rows->size()).add("d", rows->dim()).add("k", start.k);

    Measured measured;
    if (options.device == "cpu") {
        CpuBackend backend;
        measured = fit(backend, *rows, start, options.iterations);
        line.add("threads", omp_get_max_threads())
                .add("peak_host_bytes", measured.peak_host_bytes);
    } else {
#ifdef FLASHGMM_BENCH_CUDA
        CudaBackend backend;
        // The first fit makes the context and allocates.
        const Measured first = fit(backend, *rows, start, options.iterations);
        measured = fit(backend, *rows, start, options.iterations);
        line.add("seconds_first_fit", first.seconds)
                .add("device_bytes", backend.peak_device_bytes());
#else
        FLASHGMM_THROW_FMT(
                "device %s: built without CUDA", options.device.c_str());
#endif
    }
    std::printf(
            "%s\n",
            line.add("iterations", options.iterations)
                    .add("seconds_iterations", measured.seconds_iterations)
                    .add("seconds_fit", measured.seconds)
                    .add("log_likelihood", measured.log_likelihood)
                    .str()
                    .c_str());
}

} // namespace

int main(int argc, char** argv) {
    try {
        run(parse(argc, argv));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "bench_paper: %s\n", error.what());
        return 1;
    }
    return 0;
}
