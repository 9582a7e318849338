#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <faiss/IndexFlat.h>

#include <faiss_flashgmm/io/VectorWriter.h>
#include <faiss_flashgmm/io/open_vectors.h>
#include <faiss_flashgmm/tools/Console.h>
#include <faiss_flashgmm/tools/commands.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Json.h>
#include <faiss_flashgmm/utils/Timer.h>
#include <faiss_flashgmm/utils/device_name.h>

#if FLASHGMM_TOOLS_CUDA
#include <faiss_flashgmm/gpu/NearestRows.h>
#endif

namespace faiss_flashgmm {

namespace {

/// Rows of the base that are in memory at once.
constexpr int64_t kChunk = 1 << 16;
/// On a GPU: bytes of their coordinates, as floats.
[[maybe_unused]] constexpr int64_t kGpuChunkBytes = int64_t(1) << 31;

struct GroundTruth {
    Common common;
    std::string base;
    std::string queries;
    std::string output;
    std::string distances;
    int64_t k = 100;
    int64_t rows = -1;
    faiss::MetricType metric = faiss::METRIC_L2;

    void run();

   private:
    int64_t chunk(int64_t d) const;
    /// The k nearest of count rows; sorted, labels start at 0.
    void search(
            const Matrix<float>& wanted,
            RowSource& source,
            int64_t begin,
            int64_t count,
            int64_t k,
            float* distances,
            idx_t* labels) const;
    void search_on_gpu(
            const Matrix<float>& wanted,
            const Rows& rows,
            int64_t k,
            float* distances,
            idx_t* labels) const;
};

/// The k best of the results found so far and of those in the next rows.
class BestOf {
   public:
    BestOf(int64_t nq, int64_t k, faiss::MetricType metric)
            : nq_(nq),
              k_(k),
              larger_is_better_(metric == faiss::METRIC_INNER_PRODUCT) {}

    /// Results of each query are sorted, best first; labels start at 0.
    void merge(
            const std::vector<float>& distances,
            const std::vector<idx_t>& labels,
            idx_t first_label) {
        const int64_t width = int64_t(labels.size()) / nq_;
        const int64_t kept = std::min(k_, this->width() + width);
        std::vector<float> new_distances(nq_ * kept);
        std::vector<idx_t> new_labels(nq_ * kept);
#pragma omp parallel for
        for (int64_t i = 0; i < nq_; i++) {
            int64_t a = i * this->width();
            int64_t b = i * width;
            const int64_t end_a = a + this->width();
            const int64_t end_b = b + width;
            for (int64_t j = i * kept; j < (i + 1) * kept; j++) {
                const bool old = b == end_b ||
                        (a < end_a &&
                         !is_better(distances[b], this->distances[a]));
                new_distances[j] = old ? this->distances[a] : distances[b];
                const idx_t label = old ? this->labels[a++] : labels[b++];
                new_labels[j] = old || label < 0 ? label : first_label + label;
            }
        }
        this->distances.swap(new_distances);
        this->labels.swap(new_labels);
    }

    std::vector<float> distances;
    std::vector<idx_t> labels;

   private:
    int64_t width() const {
        return int64_t(labels.size()) / nq_;
    }
    bool is_better(float x, float y) const {
        return larger_is_better_ ? x > y : x < y;
    }

    int64_t nq_;
    int64_t k_;
    bool larger_is_better_;
};

#if FLASHGMM_TOOLS_CUDA
int64_t GroundTruth::chunk(int64_t d) const {
    return cuda_devices_of(common.device).empty()
            ? kChunk
            : std::max(kChunk, kGpuChunkBytes / (4 * d));
}

void GroundTruth::search_on_gpu(
        const Matrix<float>& wanted,
        const Rows& rows,
        int64_t k,
        float* distances,
        idx_t* labels) const {
    CudaOptions options;
    options.devices = cuda_devices_of(common.device);
    const bool inner_product = metric == faiss::METRIC_INNER_PRODUCT;
    NearestRows(options, rows.n, wanted.d, rows.x, inner_product)
            .nearest(
                    wanted.n,
                    wanted.values.data(),
                    k,
                    nullptr,
                    distances,
                    labels);
    if (inner_product) {
        for (int64_t i = 0; i < wanted.n * k; i++) {
            distances[i] = -distances[i];
        }
    }
}
#else
int64_t GroundTruth::chunk(int64_t) const {
    return kChunk;
}

void GroundTruth::search_on_gpu(
        const Matrix<float>&,
        const Rows&,
        int64_t,
        float*,
        idx_t*) const {
    fail_without_cuda(common.device);
}
#endif

void GroundTruth::search(
        const Matrix<float>& wanted,
        RowSource& source,
        int64_t begin,
        int64_t count,
        int64_t k,
        float* distances,
        idx_t* labels) const {
    if (!cuda_devices_of(common.device).empty()) {
        search_on_gpu(wanted, source.read(begin, count), k, distances, labels);
        return;
    }
    std::vector<float> buffer;
    faiss::IndexFlat exact(wanted.d, metric);
    exact.add(count, read_floats(source, begin, count, buffer));
    exact.search(wanted.n, wanted.values.data(), k, distances, labels);
}

void GroundTruth::run() {
    common.apply();
    const Timer timer;
    const std::unique_ptr<RowSource> source = open_vectors(base, rows);
    const Matrix<float> wanted = read_vectors(queries);
    const int64_t n = source->size();
    FLASHGMM_THROW_IF_NOT_FMT(
            wanted.d == source->dim(),
            "%s is of %lld dimensions, %s of %lld",
            base.c_str(),
            static_cast<long long>(source->dim()),
            queries.c_str(),
            static_cast<long long>(wanted.d));
    FLASHGMM_THROW_IF_NOT_FMT(
            k <= n && wanted.n > 0,
            "%lld neighbours of %lld queries among %lld vectors",
            static_cast<long long>(k),
            static_cast<long long>(wanted.n),
            static_cast<long long>(n));
    VectorWriter ids(output, k, ElementType::int32);
    std::unique_ptr<VectorWriter> values;
    if (!distances.empty()) {
        values = std::make_unique<VectorWriter>(distances, k);
    }
    BestOf best(wanted.n, k, metric);
    ProgressLine line("groundtruth", "vectors", n);
    const int64_t step = chunk(wanted.d);
    for (int64_t begin = 0; begin < n; begin += step) {
        const int64_t count = std::min(step, n - begin);
        const int64_t found = std::min(k, count);
        std::vector<float> part_distances(wanted.n * found);
        std::vector<idx_t> part_labels(wanted.n * found);
        search(wanted,
               *source,
               begin,
               count,
               found,
               part_distances.data(),
               part_labels.data());
        best.merge(part_distances, part_labels, begin);
        line.update(begin + count);
    }
    ids.append(wanted.n, best.labels.data());
    ids.finish();
    if (values) {
        values->append(wanted.n, best.distances.data());
        values->finish();
    }
    const double seconds = timer.seconds();
    common.print(
            JsonObject()
                    .add("n", n)
                    .add("queries", wanted.n)
                    .add("k", k)
                    .add("seconds", seconds)
                    .add("output", output),
            format("%lld exact neighbours of %s queries among %s vectors in %.2f s\n"
                   "%s",
                   static_cast<long long>(k),
                   short_number(double(wanted.n)).c_str(),
                   short_number(double(n)).c_str(),
                   seconds,
                   output.c_str()));
}

} // namespace

void add_groundtruth(CLI::App& program) {
    const auto truth = std::make_shared<GroundTruth>();
    CLI::App& command = *program.add_subcommand(
            "groundtruth", "Find the exact neighbours of queries");
    command.footer(
            "Example: flashgmm groundtruth base.fvecs queries.fvecs -k 100 "
            "-o groundtruth.ivecs");
    add_file(command, "base", truth->base, "Vectors to search")->required();
    add_file(command, "queries", truth->queries, "Vectors to look for")
            ->required();
    add_file(
            command,
            "-o,--output",
            truth->output,
            "Row numbers, nearest first (.ivecs .ibin .npy)")
            ->required();
    add_file(
            command,
            "--distances",
            truth->distances,
            "Squared distances or inner products (.fvecs .fbin .npy)");
    command.add_option("-k", truth->k, "Neighbours a query")
            ->check(CLI::PositiveNumber)
            ->capture_default_str();
    add_rows(command, truth->rows);
    add_metric(command, truth->metric);
    truth->common.add_device(command);
    truth->common.add_to(command);
    command.callback([truth] { truth->run(); });
}

} // namespace faiss_flashgmm
