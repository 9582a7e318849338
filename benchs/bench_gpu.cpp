// EM iterations on GPUs: checked against fp64, timed, split by kernel.
//
//     bench_gpu --n 1000000 --d 128 --k 1024 --json results.jsonl
//     bench_gpu --data sift.u8bin --k 1024       rows of a file, repeated to n
//     bench_gpu --rows pinned --type uint8       rows in host memory, as bytes

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include <faiss_flashgmm/cpu/ReferenceBackend.h>
#include <faiss_flashgmm/em/MStep.h>
#include <faiss_flashgmm/em/RowSource.h>
#include <faiss_flashgmm/gpu/CudaBackend.h>
#include <faiss_flashgmm/gpu/utils/Buffer.h>
#include <faiss_flashgmm/gpu/utils/CudaError.h>
#include <faiss_flashgmm/utils/Json.h>
#include <faiss_flashgmm/utils/Timer.h>

#include "gpu_rows.h"

namespace {

using namespace faiss_flashgmm;
using S = SufficientStats;
using Options = GpuBenchOptions;

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

/// What a number of iterations took.
struct Timings {
    std::vector<double> milliseconds; ///< of a whole iteration
    std::vector<CudaTimes> kernels;
    int host_m_steps = 0; ///< iterations that moved an empty component
    double pairs = 0;
    double dropped = 0;
    double log_likelihood = 0;
    Mixture mixture; ///< the last one
};

/// As a fit iterates, after o.warm_up iterations.
Timings iterate(
        CudaBackend& backend,
        const Options& o,
        const Rows& rows,
        const Conditioning& conditioning,
        Mixture mixture) {
    const EMOptions em;
    Timings result;
    bool advanced = false;
    for (int i = 0; i < o.warm_up + o.runs; i++) {
        Timer timer;
        if (!advanced) {
            backend.begin(mixture, conditioning);
        }
        backend.add_rows(rows);
        Backend::Sums sums{};
        MStepReport report;
        advanced = backend.advance(em, sums, report);
        if (!advanced) {
            const SufficientStats& stats = backend.finish();
            for (size_t s = 0; s < sums.size(); s++) {
                sums[s] = stats.scalar(S::Scalar(s));
            }
            backend.read_mixture(mixture);
            maximize(stats, em, conditioning, uint64_t(i), mixture);
        }
        if (i >= o.warm_up) {
            result.milliseconds.push_back(timer.seconds() * 1e3);
            result.kernels.push_back(backend.times());
            result.host_m_steps += !advanced;
        }
        result.pairs = sums[S::kPairs] / sums[S::kRows];
        result.dropped = sums[S::kDroppedMass] / sums[S::kWeight];
        result.log_likelihood = sums[S::kLogLikelihood] / sums[S::kWeight];
    }
    if (advanced) {
        backend.read_mixture(mixture);
    }
    result.mixture = mixture;
    return result;
}

void run(Options o) {
    cudaDeviceProp device{};
    FLASHGMM_CUDA(cudaGetDeviceProperties(&device, 0));
    std::vector<float> x = make_rows(o);
    const RowType type = row_type(o);
    const std::vector<std::byte> encoded = encode(x, type);
    const Conditioning conditioning = conditioning_of(o, x);
    const Mixture mixture = first_mixture(o, x, conditioning);

    gpu::DeviceMemory memory;
    gpu::DeviceBuffer<std::byte> on_device(memory);
    gpu::PinnedBuffer<std::byte> pinned;
    Rows rows{o.n, {encoded.data(), type}};
    if (o.rows == "kept") {
        rows.key = {0, 0};
    } else if (o.rows == "device") {
        on_device.reserve(encoded.size(), "the rows");
        FLASHGMM_CUDA(cudaMemcpy(
                on_device.get(),
                encoded.data(),
                encoded.size(),
                cudaMemcpyHostToDevice));
        rows.x.data = on_device.get();
    } else if (o.rows == "pinned") {
        pinned.reserve(encoded.size(), "the rows");
        std::copy(encoded.begin(), encoded.end(), pinned.get());
        rows.x.data = pinned.get();
    }

    CudaOptions cuda = cuda_options(o);
    CudaBackend backend(cuda);
    backend.begin_fit(o.n, o.k, o.d);
    const Timings whole = iterate(backend, o, rows, conditioning, mixture);
    const int64_t dense = backend.dense_rows();
    const int64_t peak = backend.peak_device_bytes();
    const Errors errors = compare(backend, o, x, whole.mixture, conditioning);
    backend.end_fit();

    cuda.profile = true; // the events have a price of their own
    CudaBackend profiled(cuda);
    profiled.begin_fit(o.n, o.k, o.d);
    const Timings split = iterate(profiled, o, rows, conditioning, mixture);
    const auto phase = [&](double CudaTimes::*member) {
        std::vector<double> v;
        for (const CudaTimes& t : split.kernels) {
            v.push_back(t.*member);
        }
        return median(v);
    };
    const double posterior = phase(&CudaTimes::posterior);
    const double kernels = posterior + phase(&CudaTimes::condition) +
            phase(&CudaTimes::seed) + phase(&CudaTimes::emit) +
            phase(&CudaTimes::refine) + phase(&CudaTimes::sort) +
            phase(&CudaTimes::sum) + phase(&CudaTimes::dense);
    const double m_step = phase(&CudaTimes::maximize);
    const double iteration = median(whole.milliseconds);
    const double tflops =
            2e-9 * double(o.n) * double(o.k) * double(o.d) / posterior;

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
                    .add("ms_maximize", m_step)
                    .add("ms_iteration", iteration)
                    .add("ms_host", iteration - kernels - m_step)
                    .add("host_m_steps", whole.host_m_steps)
                    .add("type", o.type)
                    .add("devices", o.devices)
                    .add("peak_device_bytes", peak)
                    .add("tflops_posterior", tflops)
                    .add("pairs_per_row", whole.pairs)
                    .add("dropped_mass", whole.dropped)
                    .add("dense_rows", dense)
                    .add("log_likelihood", whole.log_likelihood)
                    .add("error_log_z", errors.log_z)
                    .add("error_counts", errors.counts)
                    .add("error_sums", errors.sums)
                    .add("error_squared", errors.squared)
                    .add("error_assignments", errors.assignments)
                    .str();
    std::printf(
            "%-9s %-6s n %9ld d %4ld k %6ld %-8s %-8s x%d | iteration %8.3f = "
            "kernels %8.3f + M %6.3f + host %6.3f | pass1 %8.3f (%5.1f "
            "TFLOP/s) seed %6.3f emit %6.3f refine %6.3f sort %6.3f sum %6.3f "
            "cond %6.3f dense %7.3f | pairs %5.2f dropped %.1e dense %ld | err "
            "z %.1e N %.1e M %.1e Q %.1e best %.1e\n",
            o.data.empty() ? "clustered" : "file",
            o.precision.c_str(),
            long(o.n),
            long(o.d),
            long(o.k),
            o.rows.c_str(),
            o.type.c_str(),
            o.devices,
            iteration,
            kernels,
            m_step,
            iteration - kernels - m_step,
            posterior,
            tflops,
            phase(&CudaTimes::seed),
            phase(&CudaTimes::emit),
            phase(&CudaTimes::refine),
            phase(&CudaTimes::sort),
            phase(&CudaTimes::sum),
            phase(&CudaTimes::condition),
            phase(&CudaTimes::dense),
            whole.pairs,
            whole.dropped,
            long(dense),
            errors.log_z,
            errors.counts,
            errors.sums,
            errors.squared,
            errors.assignments);
    write_line(o, line);
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
