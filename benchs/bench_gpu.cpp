// EM iterations on one GPU: checked against fp64, timed, split by kernel.
//
//     bench_gpu --n 1000000 --d 128 --k 1024 --json results.jsonl
//     bench_gpu --data sift.u8bin --k 1024       rows of a file, repeated to n
//     bench_gpu --fit 25                         a fit, from pageable memory

#include <cuda_runtime_api.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <faiss_flashgmm/cpu/ReferenceBackend.h>
#include <faiss_flashgmm/em/EMSolver.h>
#include <faiss_flashgmm/em/MStep.h>
#include <faiss_flashgmm/em/RowSource.h>
#include <faiss_flashgmm/gpu/CudaBackend.h>
#include <faiss_flashgmm/gpu/utils/Buffer.h>
#include <faiss_flashgmm/gpu/utils/CudaError.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Json.h>
#include <faiss_flashgmm/utils/Timer.h>

namespace {

using namespace faiss_flashgmm;
using S = SufficientStats;

struct Options {
    int64_t n = 1'000'000;
    int64_t d = 128;
    int64_t k = 1024;
    int runs = 15;
    int warm_up = 8;
    std::string precision = "fp16";
    std::string unit = "automatic"; ///< automatic | mma
    std::string data;          ///< .u8bin or .f16bin; empty: clustered rows
    std::string json;          ///< append results to this file
    std::string rows = "kept"; ///< kept | device | pageable | pinned
    double min_responsibility = CudaOptions().min_responsibility;
    int check_rows = 2000;
    bool deterministic = false;
    int fit = 0; ///< time a whole fit of so many iterations instead
};

Options parse(int argc, char** argv) {
    Options o;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        const char* value = argv[i + 1];
        if (name == "--n") {
            o.n = std::atoll(value);
        } else if (name == "--d") {
            o.d = std::atoll(value);
        } else if (name == "--k") {
            o.k = std::atoll(value);
        } else if (name == "--runs") {
            o.runs = std::atoi(value);
        } else if (name == "--warm-up") {
            o.warm_up = std::atoi(value);
        } else if (name == "--precision") {
            o.precision = value;
        } else if (name == "--unit") {
            o.unit = value;
        } else if (name == "--data") {
            o.data = value;
        } else if (name == "--json") {
            o.json = value;
        } else if (name == "--rows") {
            o.rows = value;
        } else if (name == "--min-responsibility") {
            o.min_responsibility = std::atof(value);
        } else if (name == "--check-rows") {
            o.check_rows = std::atoi(value);
        } else if (name == "--fit") {
            o.fit = std::atoi(value);
        } else if (name == "--deterministic") {
            o.deterministic = std::atoi(value) != 0;
        } else {
            FLASHGMM_THROW_FMT("unknown option %s", name.c_str());
        }
    }
    return o;
}

/// Rows around k / 4 centres of their own, so that components share rows.
std::vector<float> clustered_rows(const Options& o) {
    std::vector<float> x(o.n * o.d);
    const int64_t centres = std::max<int64_t>(1, o.k / 4);
    std::vector<float> centre(centres * o.d);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& v : centre) {
        v = normal(random);
    }
#pragma omp parallel
    {
        std::mt19937 own(1000 + omp_get_thread_num());
        std::normal_distribution<float> noise(0, 0.6f);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < o.n; i++) {
            const float* c = centre.data() + own() % centres * o.d;
            for (int64_t j = 0; j < o.d; j++) {
                x[i * o.d + j] = c[j] + noise(own);
            }
        }
    }
    return x;
}

float from_half(uint16_t h) {
    const int exponent = h >> 10 & 31;
    const float fraction = float(h & 1023);
    const float magnitude = exponent == 0
            ? std::ldexp(fraction, -24)
            : std::ldexp(1024 + fraction, exponent - 25);
    return h & 0x8000 ? -magnitude : magnitude;
}

/// Rows of a file, over and over; repeats get noise of 1% of the spread.
std::vector<float> rows_of_file(Options& o) {
    std::ifstream in(o.data, std::ios::binary);
    uint32_t header[2] = {};
    in.read(reinterpret_cast<char*>(header), sizeof(header));
    FLASHGMM_THROW_IF_NOT_FMT(in.good(), "cannot read %s", o.data.c_str());
    const bool bytes = o.data.find(".u8bin") != std::string::npos;
    const int64_t stored = header[0];
    o.d = header[1];
    std::vector<char> raw(stored * o.d * (bytes ? 1 : 2));
    in.read(raw.data(), std::streamsize(raw.size()));
    FLASHGMM_THROW_IF_NOT_FMT(
            in.good(), "%s is shorter than it says", o.data.c_str());
    std::vector<float> base(stored * o.d);
    double squared = 0;
    for (size_t i = 0; i < base.size(); i++) {
        uint16_t h;
        if (bytes) {
            base[i] = uint8_t(raw[i]);
        } else {
            std::memcpy(&h, raw.data() + 2 * i, 2);
            base[i] = from_half(h);
        }
        squared += double(base[i]) * base[i];
    }
    const float spread = float(std::sqrt(squared / double(base.size())));
    std::vector<float> x(o.n * o.d);
#pragma omp parallel
    {
        std::mt19937 own(2000 + omp_get_thread_num());
        std::normal_distribution<float> noise(0, 0.01f * spread);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < o.n; i++) {
            for (int64_t j = 0; j < o.d; j++) {
                x[i * o.d + j] = base[i % stored * o.d + j] +
                        (i >= stored ? noise(own) : 0.0f);
            }
        }
    }
    return x;
}

Conditioning conditioning_of(const Options& o, const std::vector<float>& x) {
    const int64_t sample = std::min<int64_t>(o.n, 20'000);
    std::vector<double> mean(o.d), square(o.d);
    for (int64_t i = 0; i < sample; i++) {
        for (int64_t j = 0; j < o.d; j++) {
            const double v = x[i * o.d + j];
            mean[j] += v / double(sample);
            square[j] += v * v / double(sample);
        }
    }
    double variance = 0;
    for (int64_t j = 0; j < o.d; j++) {
        variance += (square[j] - mean[j] * mean[j]) / double(o.d);
    }
    return Conditioning::from_moments(mean, variance, true);
}

/// Random rows as means, a third of the global variance.
Mixture first_mixture(
        const Options& o,
        const std::vector<float>& x,
        const Conditioning& conditioning) {
    Mixture mixture(o.k, o.d);
    const std::vector<int64_t> rows = sample_indices(o.n, o.k, 5);
    for (int64_t c = 0; c < o.k; c++) {
        std::copy_n(x.data() + rows[c] * o.d, o.d, mixture.mean(c));
        mixture.variances[c] = conditioning.global_variance / 3 *
                conditioning.scale * conditioning.scale;
        mixture.weights[c] = 1 / double(o.k);
    }
    return conditioning.to_conditioned(mixture);
}

double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

CudaPrecision precision_of(const std::string& name) {
    return name == "fp32"         ? CudaPrecision::fp32
            : name == "reference" ? CudaPrecision::reference
                                  : CudaPrecision::fp16;
}

/// Errors against fp64 on a few rows.
struct Errors {
    double log_z = 0;       ///< largest absolute
    double counts = 0;      ///< sum of |error| / rows
    double sums = 0;        ///< |error| / |value|, Frobenius
    double squared = 0;     ///< likewise
    double assignments = 0; ///< share of rows whose best component differs
};

Errors compare(
        CudaBackend& backend,
        const Options& o,
        const std::vector<float>& x,
        const Mixture& mixture,
        const Conditioning& conditioning) {
    const int64_t n = std::min<int64_t>(o.check_rows, o.n);
    ReferenceBackend reference;
    std::vector<int64_t> ids(2 * n, -7), true_ids(2 * n);
    std::vector<float> scores(2 * n, NAN), true_scores(2 * n);
    std::vector<float> z(n, NAN), true_z(n);
    const int64_t m = std::min<int64_t>(2, o.k);
    Errors e;
    backend.begin(mixture, conditioning);
    backend.accumulate(n, x.data(), nullptr);
    const SufficientStats got = backend.finish();
    backend.assign(n, x.data(), m, ids.data(), scores.data(), z.data());
    reference.begin(mixture, conditioning);
    reference.accumulate(n, x.data(), nullptr);
    const SufficientStats want = reference.finish();
    reference.assign(
            n, x.data(), m, true_ids.data(), true_scores.data(), true_z.data());
    for (int64_t i = 0; i < n; i++) {
        // A NaN must not pass for a small error.
        const double error = std::abs(double(z[i]) - true_z[i]);
        e.log_z = error <= e.log_z ? e.log_z : error;
        e.assignments += double(ids[m * i] != true_ids[m * i]) / double(n);
    }
    const auto relative = [](auto a, auto b) {
        double error = 0;
        double size = 0;
        for (size_t i = 0; i < a.size(); i++) {
            error += (a[i] - b[i]) * (a[i] - b[i]);
            size += b[i] * b[i];
        }
        return std::sqrt(error / size);
    };
    for (int64_t c = 0; c < o.k; c++) {
        e.counts += std::abs(got.counts()[c] - want.counts()[c]) / double(n);
    }
    e.sums = relative(got.sums(), want.sums());
    e.squared = relative(got.squared(), want.squared());
    return e;
}

/// From rows in pageable memory to the mixture: checks, first means, copies.
void time_fit(const Options& o, const std::vector<float>& x) {
    CudaOptions cuda;
    cuda.precision = precision_of(o.precision);
    CudaBackend backend(cuda);
    EMOptions em;
    em.niter = o.fit;
    em.init = Initialization::random_rows;
    Timer timer;
    backend.keep_rows(x.data(), int64_t(x.size()));
    MemoryRows rows(o.n, o.d, x.data());
    double check_seconds = 0;
    em.progress = [&](const Progress& progress) {
        if (progress.stage == Progress::Stage::check_rows) {
            check_seconds = timer.seconds();
        }
    };
    const EMResult result = EMSolver(backend, em).fit(rows, o.k);
    const double seconds = timer.seconds();
    double e_step = 0;
    double iterations = 0;
    for (const IterationStats& s : result.iterations) {
        e_step += s.seconds_e_step;
        iterations += s.seconds;
    }
    const std::string line = JsonObject()
                                     .add("bench", "bench_gpu_fit")
                                     .add("n", o.n)
                                     .add("d", o.d)
                                     .add("k", o.k)
                                     .add("iterations", o.fit)
                                     .add("seconds", seconds)
                                     .add("seconds_check_rows", check_seconds)
                                     .add("seconds_iterations", iterations)
                                     .add("seconds_e_steps", e_step)
                                     .add("seconds_first_iteration",
                                          result.iterations[0].seconds)
                                     .str();
    std::printf("%s\n", line.c_str());
    if (!o.json.empty()) {
        std::ofstream(o.json, std::ios::app) << line << '\n';
    }
}

void run(Options o) {
    cudaDeviceProp device{};
    FLASHGMM_CUDA(cudaGetDeviceProperties(&device, 0));
    const std::vector<float> x =
            o.data.empty() ? clustered_rows(o) : rows_of_file(o);
    if (o.fit > 0) {
        time_fit(o, x);
        return;
    }
    const Conditioning conditioning = conditioning_of(o, x);
    Mixture mixture = first_mixture(o, x, conditioning);

    CudaOptions cuda;
    cuda.precision = precision_of(o.precision);
    cuda.profile = true;
    cuda.min_responsibility = o.min_responsibility;
    cuda.deterministic = o.deterministic;
    cuda.matrix_unit =
            o.unit == "mma" ? CudaMatrixUnit::mma : CudaMatrixUnit::automatic;
    CudaBackend backend(cuda);

    gpu::DeviceBuffer<float> on_device;
    gpu::PinnedBuffer<float> pinned;
    const float* rows = x.data();
    if (o.rows == "kept" || o.rows == "device") {
        on_device.reserve(x.size(), "the rows");
        FLASHGMM_CUDA(cudaMemcpy(
                on_device.get(),
                x.data(),
                x.size() * sizeof(float),
                cudaMemcpyHostToDevice));
        rows = on_device.get();
        if (o.rows == "kept") {
            backend.keep_rows(rows, int64_t(x.size()));
        }
    } else if (o.rows == "pinned") {
        pinned.reserve(x.size(), "the rows");
        std::copy(x.begin(), x.end(), pinned.get());
        rows = pinned.get();
    }

    EMOptions em;
    std::vector<double> total, begin, e_step, m_step;
    std::vector<CudaTimes> times;
    double pairs = 0;
    double dropped = 0;
    double log_likelihood = 0;
    for (int i = 0; i < o.warm_up + o.runs; i++) {
        Timer all;
        backend.begin(mixture, conditioning);
        const double begun = all.seconds();
        backend.accumulate(o.n, rows, nullptr);
        const SufficientStats& stats = backend.finish();
        const double stepped = all.seconds();
        pairs = stats.scalar(S::kPairs) / double(o.n);
        dropped = stats.scalar(S::kDroppedMass) / stats.scalar(S::kWeight);
        log_likelihood =
                stats.scalar(S::kLogLikelihood) / stats.scalar(S::kWeight);
        maximize(stats, em, conditioning, uint64_t(i), mixture);
        if (i >= o.warm_up) {
            total.push_back(all.seconds() * 1e3);
            begin.push_back(begun * 1e3);
            e_step.push_back((stepped - begun) * 1e3);
            m_step.push_back((all.seconds() - stepped) * 1e3);
            times.push_back(backend.times());
        }
    }
    const auto phase = [&](double CudaTimes::*member) {
        std::vector<double> v;
        for (const CudaTimes& t : times) {
            v.push_back(t.*member);
        }
        return median(v);
    };
    const double posterior = phase(&CudaTimes::posterior);
    const double kernels = posterior + phase(&CudaTimes::condition) +
            phase(&CudaTimes::seed) + phase(&CudaTimes::emit) +
            phase(&CudaTimes::refine) + phase(&CudaTimes::sort) +
            phase(&CudaTimes::sum) + phase(&CudaTimes::dense);
    const double tflops =
            2e-9 * double(o.n) * double(o.k) * double(o.d) / posterior;
    const int64_t dense = backend.dense_rows();
    const Errors errors = compare(backend, o, x, mixture, conditioning);

    std::time_t now = std::time(nullptr);
    char date[16];
    std::strftime(date, sizeof(date), "%Y-%m-%d", std::gmtime(&now));
    const std::string line =
            JsonObject()
                    .add("bench", "bench_gpu")
                    .add("date", date)
                    .add("device", device.name)
                    .add("data",
                         o.data.empty() ? "clustered"
                                        : o.data.substr(o.data.rfind('/') + 1))
                    .add("n", o.n)
                    .add("d", o.d)
                    .add("k", o.k)
                    .add("precision", o.precision)
                    .add("unit", o.unit)
                    .add("deterministic", o.deterministic)
                    .add("rows", o.rows)
                    .add("runs", o.runs)
                    .add("min_responsibility", o.min_responsibility)
                    .add("ms_kernels", kernels)
                    .add("ms_condition", phase(&CudaTimes::condition))
                    .add("ms_seed", phase(&CudaTimes::seed))
                    .add("ms_posterior", posterior)
                    .add("ms_emit", phase(&CudaTimes::emit))
                    .add("ms_refine", phase(&CudaTimes::refine))
                    .add("ms_sort", phase(&CudaTimes::sort))
                    .add("ms_sum", phase(&CudaTimes::sum))
                    .add("ms_dense", phase(&CudaTimes::dense))
                    .add("ms_iteration", median(total))
                    .add("ms_host_begin", median(begin))
                    .add("ms_e_step", median(e_step))
                    .add("ms_host_m_step", median(m_step))
                    .add("tflops_posterior", tflops)
                    .add("pairs_per_row", pairs)
                    .add("dropped_mass", dropped)
                    .add("dense_rows", dense)
                    .add("log_likelihood", log_likelihood)
                    .add("error_log_z", errors.log_z)
                    .add("error_counts", errors.counts)
                    .add("error_sums", errors.sums)
                    .add("error_squared", errors.squared)
                    .add("error_assignments", errors.assignments)
                    .str();
    std::printf(
            "%-9s %-6s n %9ld d %4ld k %6ld %-8s| kernels %8.3f = pass1 %8.3f "
            "(%5.1f TFLOP/s) + seed %6.3f + emit %6.3f + refine %6.3f + "
            "sort %6.3f + sum %6.3f + cond %6.3f + dense %7.3f | E %8.3f M %7.3f begin %6.3f ms | pairs "
            "%5.2f dropped %.1e dense %ld | err z %.1e N %.1e M %.1e Q %.1e "
            "best %.1e\n",
            o.data.empty() ? "clustered" : "file",
            o.precision.c_str(),
            long(o.n),
            long(o.d),
            long(o.k),
            o.rows.c_str(),
            kernels,
            posterior,
            tflops,
            phase(&CudaTimes::seed),
            phase(&CudaTimes::emit),
            phase(&CudaTimes::refine),
            phase(&CudaTimes::sort),
            phase(&CudaTimes::sum),
            phase(&CudaTimes::condition),
            phase(&CudaTimes::dense),
            median(e_step),
            median(m_step),
            median(begin),
            pairs,
            dropped,
            long(dense),
            errors.log_z,
            errors.counts,
            errors.sums,
            errors.squared,
            errors.assignments);
    if (!o.json.empty()) {
        std::ofstream(o.json, std::ios::app) << line << '\n';
    }
}

} // namespace

int main(int argc, char** argv) {
    try {
        run(parse(argc, argv));
    } catch (const std::exception& e) {
        std::fprintf(stderr, "bench_gpu: %s\n", e.what());
        return 1;
    }
    return 0;
}
