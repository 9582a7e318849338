// Whole fits on GPUs, from rows in pageable host memory to the mixture; and
// iterations over more rows than fit anywhere, from a generator.
//
//     bench_gpu_fit --n 1000000 --d 128 --k 1024 --fit 25
//     bench_gpu_fit --stream 100000000 --d 96 --k 1024 --fit 3

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <faiss_flashgmm/em/EMSolver.h>
#include <faiss_flashgmm/gpu/CudaBackend.h>
#include <faiss_flashgmm/gpu/utils/Buffer.h>
#include <faiss_flashgmm/gpu/utils/Device.h>
#include <faiss_flashgmm/utils/Json.h>
#include <faiss_flashgmm/utils/Timer.h>

#include "gpu_rows.h"

namespace {

using namespace faiss_flashgmm;
using Options = GpuBenchOptions;

/// The first fit of a backend, with all that it allocates, and later ones.
void time_fits(Options o) {
    std::vector<float> x = make_rows(o);
    const RowType type = row_type(o);
    const std::vector<std::byte> encoded = encode(x, type);
    FLASHGMM_CUDA(cudaFree(nullptr)); // makes the context
    Timer made;
    CudaBackend backend(cuda_options(o));
    const double seconds_make = made.seconds();
    for (int i = 0; i < 3; i++) {
        EMOptions em;
        em.niter = o.fit;
        em.init = o.init == "kmeans_pp" ? Initialization::kmeans_pp
                : o.init == "lloyd"     ? Initialization::lloyd
                                        : Initialization::random_rows;
        Timer timer;
        double checked = 0;
        double initialized = 0;
        em.progress = [&](const Progress& progress) {
            if (progress.stage == Progress::Stage::check_rows) {
                checked = timer.seconds();
            } else if (progress.stage == Progress::Stage::initialize) {
                initialized = timer.seconds();
            }
        };
        MemoryRows rows(o.n, o.d, {encoded.data(), type});
        const EMResult result = EMSolver(backend, em).fit(rows, o.k);
        const double seconds = timer.seconds();
        double iterations = 0;
        for (const IterationStats& s : result.iterations) {
            iterations += s.seconds;
        }
        const double first = result.iterations[0].seconds;
        write_line(
                o,
                JsonObject()
                        .add("bench", "bench_gpu_fit")
                        .add("n", o.n)
                        .add("d", o.d)
                        .add("k", o.k)
                        .add("type", o.type)
                        .add("init", o.init)
                        .add("devices", o.devices)
                        .add("iterations", o.fit)
                        .add("fit", i)
                        .add("seconds", seconds)
                        .add("seconds_backend", seconds_make)
                        .add("seconds_check_rows", checked)
                        .add("seconds_initialize", initialized - checked)
                        .add("seconds_first_iteration", first)
                        .add("seconds_iterations", iterations)
                        .add("peak_device_bytes", backend.peak_device_bytes())
                        .str());
        std::printf(
                "fit %d: %.4f s (backend %.4f) = check %.4f + initialize %.4f "
                "+ first iteration %.4f + %d more %.4f + rest %.4f; L %.6f\n",
                i,
                seconds,
                seconds_make,
                checked,
                initialized - checked,
                first,
                o.fit - 1,
                iterations - first,
                seconds - initialized - iterations,
                result.iterations.back().log_likelihood);
    }
}

/** Rows from a pool in pinned memory, a chunk of a pass from another place in
 * it: a generator that costs nothing, so that the copy to the device is what
 * is measured.
 */
class PooledRows : public RowSource {
   public:
    static constexpr int64_t kChunk = 1 << 20;

    /// @param pool     rows at x, more than two chunks
    PooledRows(int64_t n, int64_t d, int64_t pool, RowView x)
            : n_(n), d_(d), pool_(pool), x_(x) {}

    int64_t size() const override {
        return n_;
    }
    int64_t dim() const override {
        return d_;
    }
    Rows read(int64_t begin, int64_t count) override {
        constexpr int64_t kStride = 104'729; // prime: places differ
        const int64_t place = begin / kChunk * kStride % (pool_ - 2 * kChunk);
        const int64_t at = place + begin % kChunk;
        return {count, x_.from(at * d_), nullptr};
    }

   private:
    int64_t n_, d_, pool_;
    RowView x_;
};

/// GB/s of one large copy from pinned memory.
double copy_rate(const std::byte* from, int64_t bytes) {
    gpu::DeviceMemory memory;
    gpu::DeviceBuffer<std::byte> to(memory);
    to.reserve(bytes, "the copy");
    double best = 0;
    for (int i = 0; i < 4; i++) {
        Timer timer;
        FLASHGMM_CUDA(
                cudaMemcpy(to.get(), from, bytes, cudaMemcpyHostToDevice));
        FLASHGMM_CUDA(cudaDeviceSynchronize());
        best = std::max(best, double(bytes) * 1e-9 / timer.seconds());
    }
    return best;
}

void time_stream(Options o) {
    std::vector<float> x = make_rows(o);
    const RowType type = row_type(o);
    gpu::PinnedBuffer<std::byte> pool;
    {
        const std::vector<std::byte> encoded = encode(x, type);
        pool.reserve(encoded.size(), "the pool of rows");
        std::memcpy(pool.get(), encoded.data(), encoded.size());
    }
    const double rate = copy_rate(pool.get(), int64_t(pool.bytes()));
    CudaOptions cuda = cuda_options(o);
    // So that rows are not kept.
    cuda.memory_limit =
            CudaBackend::device_bytes(cuda.max_launch_rows, o.k, o.d) +
            (int64_t(800) << 20);
    size_t before = 0;
    size_t after = 0;
    size_t total = 0;
    FLASHGMM_CUDA(cudaMemGetInfo(&before, &total));
    CudaBackend backend(cuda);
    EMOptions em;
    em.niter = o.fit;
    em.init = Initialization::random_rows;
    em.chunk_rows = PooledRows::kChunk;
    em.progress = [&](const Progress&) {
        size_t left = 0;
        FLASHGMM_CUDA(cudaMemGetInfo(&left, &total));
        after = after == 0 ? left : std::min(after, left);
    };
    PooledRows rows(o.stream, o.d, o.n, {pool.get(), type});
    const EMResult result = EMSolver(backend, em).fit(rows, o.k);
    for (const IterationStats& s : result.iterations) {
        const double rows_a_second = double(o.stream) / s.seconds;
        const double gigabytes =
                rows_a_second * double(o.d * size_of(type)) * 1e-9;
        write_line(
                o,
                JsonObject()
                        .add("bench", "bench_gpu_stream")
                        .add("n", o.stream)
                        .add("d", o.d)
                        .add("k", o.k)
                        .add("type", o.type)
                        .add("seconds", s.seconds)
                        .add("rows_a_second", rows_a_second)
                        .add("gb_a_second", gigabytes)
                        .add("copy_gb_a_second", rate)
                        .add("peak_device_bytes", backend.peak_device_bytes())
                        .add("device_bytes_seen", int64_t(before - after))
                        .str());
        std::printf(
                "stream %ld x %ld %s k %ld: iteration %.3f s, %.1f M rows/s, "
                "%.1f of %.1f GB/s, peak %.0f MB (seen %.0f), limit %.0f, L "
                "%.5f\n",
                long(o.stream),
                long(o.d),
                o.type.c_str(),
                long(o.k),
                s.seconds,
                rows_a_second * 1e-6,
                gigabytes,
                rate,
                double(backend.peak_device_bytes()) * 1e-6,
                double(before - after) * 1e-6,
                double(cuda.memory_limit) * 1e-6,
                s.log_likelihood);
    }
}

} // namespace

int main(int argc, char** argv) {
    try {
        const Options o = parse(argc, argv);
        o.stream > 0 ? time_stream(o) : time_fits(o);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "bench_gpu_fit: %s\n", e.what());
        return 1;
    }
    return 0;
}
