#include <faiss_flashgmm/gpu/CudaBackend.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numbers>
#include <tuple>
#include <vector>

#include <faiss_flashgmm/gpu/kernels/ConditionRows.cuh>
#include <faiss_flashgmm/gpu/kernels/DensePosterior.cuh>
#include <faiss_flashgmm/gpu/kernels/EmitPairs.cuh>
#include <faiss_flashgmm/gpu/kernels/PairSums.cuh>
#include <faiss_flashgmm/gpu/kernels/RefinePairs.cuh>
#include <faiss_flashgmm/gpu/kernels/SparsePosterior.cuh>
#include <faiss_flashgmm/gpu/utils/Buffer.h>
#include <faiss_flashgmm/gpu/utils/Device.h>

namespace faiss_flashgmm {

using namespace gpu;

namespace {

/// Pairs that a launch has room for: SIFT has 3 a row, GloVe 11.
constexpr int64_t kPairsOfRow = 16;
/// Rows of the least launch, and pairs that they can have.
constexpr int64_t kLeastRows = 2 * HalfRows::kTile;
constexpr int64_t kLeastPairs = kLeastRows * 8 * EmitPairs::kMostGroups;
/// Groups of logits that pass 1 can keep of a row, on average, in the largest
/// launch; there is more room in smaller ones.
constexpr int64_t kGroupsOfRow = 8;
constexpr int64_t kLeastGroups = 64; ///< of a thread in any launch
/// With a larger share of dense rows a launch starts over with fewer rows, as
/// long as it has more than these.
constexpr int64_t kDenseShare = 32;
constexpr int64_t kRoomyRows = 1 << 15;
/// Logits of the dense way that exist at once.
constexpr int64_t kDenseLogits = 1 << 22;
/// Bytes of rows from host memory that are copied at once.
constexpr int64_t kStagingBytes = 16 << 20;
/// Past so many bits fp16 cannot choose the components any more.
constexpr double kMostSlack = 24;
/// Larger coordinates of a mean, in conditioned units, take the dense way.
constexpr float kLargestMean = 30000;

/// Rows on the device. What is not owned is read in place.
struct ResidentRows {
    DeviceBuffer<float> x;
    DeviceBuffer<float> weights;
    DeviceBuffer<__half> half;
    DeviceBuffer<float> squared;
    DeviceBuffer<uint32_t> best; ///< component of the last iteration
    FloatRows rows;
    HalfRows half_rows;
};

enum class Memory { pageable, pinned, device };

Memory memory_of(const void* p) {
    cudaPointerAttributes attributes{};
    FLASHGMM_CUDA(cudaPointerGetAttributes(&attributes, p));
    switch (attributes.type) {
        case cudaMemoryTypeDevice:
        case cudaMemoryTypeManaged:
            return Memory::device;
        case cudaMemoryTypeHost:
            return Memory::pinned;
        default:
            return Memory::pageable;
    }
}

/// By their bits: compilers turn this loop, unlike one of floats, into vectors.
float largest_magnitude(const std::vector<float>& v) {
    uint32_t largest = 0;
    for (const float x : v) {
        largest = std::max(largest, std::bit_cast<uint32_t>(x) & 0x7FFFFFFF);
    }
    return std::bit_cast<float>(largest);
}

/// Device times of phases, by events; nothing waits until the end.
class Profiler {
   public:
    explicit Profiler(bool on) : on_(on) {}

    template <class Work>
    void time(double CudaTimes::*phase, cudaStream_t stream, Work&& work) {
        if (!on_) {
            work();
            return;
        }
        auto span = std::make_unique<Span>(phase);
        span->begin.record(stream);
        work();
        span->end.record(stream);
        spans_.push_back(std::move(span));
    }
    void clear() {
        times = {};
        spans_.clear();
    }
    /// After the stream is done.
    void collect() {
        for (const auto& span : spans_) {
            times.*(span->phase) += milliseconds(span->begin, span->end);
        }
        spans_.clear();
    }

    CudaTimes times;

   private:
    struct Span {
        explicit Span(double CudaTimes::*phase) : phase(phase) {}
        double CudaTimes::*phase;
        Event begin{Event::Timing::on};
        Event end{Event::Timing::on};
    };
    bool on_;
    std::vector<std::unique_ptr<Span>> spans_;
};

} // namespace

struct CudaBackend::Impl {
    explicit Impl(CudaOptions options)
            : options(options),
              launch_rows(std::max(options.max_launch_rows, kLeastRows)),
              profiler(options.profile) {}

    CudaOptions options;
    int64_t k = 0;
    int64_t d = 0;
    Conditioning conditioning;
    double log2_base = 0; ///< taken off every offset: keeps fp32 digits
    double slack_bits = 0;
    bool sparse = false; ///< the tensor cores serve this mixture
    int64_t rows_seen = 0;
    int64_t dense_seen = 0;
    int64_t launch_rows;
    SufficientStats stats;
    PinnedScope pinned_stats;
    Profiler profiler;

    Stream compute;
    Stream copying;

    // The mixture.
    DeviceBuffer<float> means;
    DeviceBuffer<float> precision;
    DeviceBuffer<float> offset;
    DeviceBuffer<__half> half_means;
    DeviceBuffer<float2> constants;
    DeviceBuffer<float> shift;
    PinnedBuffer<float> mixture_staging;
    Components components;
    HalfComponents half_components;

    // The statistics.
    DeviceBuffer<double> device_stats;
    PinnedBuffer<double> host_scalars;

    // One launch.
    DeviceBuffer<Pair> pairs;
    DeviceBuffer<uint32_t> counts, dense_list;
    DeviceBuffer<ChunkState> state;
    DeviceBuffer<RowSums> row_sums;
    DeviceBuffer<uint32_t> range_begin, range_count;
    DeviceBuffer<float> range_tail;
    DeviceBuffer<LogitGroup> groups;
    DeviceBuffer<uint2> group_ranges;
    DeviceBuffer<float> largest, second, seeds;
    DeviceBuffer<uint32_t> offsets, segment_offsets, segment_bucket;
    DeviceBuffer<SortedPair> sorted;
    DeviceBuffer<float> partial, logits;
    PinnedBuffer<ChunkState> host_state;
    Event state_copied;
    int64_t capacity = 0;

    // Rows from host memory.
    std::array<ResidentRows, 2> slots;
    std::array<Event, 2> slot_copied;
    std::array<Event, 2> slot_free;
    std::array<PinnedBuffer<float>, 2> staging;
    std::array<Event, 2> staging_free;
    ResidentRows in_place; ///< fp16 form of rows in device memory
    using RowsKey = std::tuple<const float*, const float*, int64_t>;
    std::map<RowsKey, ResidentRows> kept;
    bool keep_full = false; ///< no memory to keep more rows
    const float* stable_begin = nullptr;
    const float* stable_end = nullptr;

    // Results of assign().
    DeviceBuffer<int64_t> top_components;
    DeviceBuffer<float> top_scores, top_log_z;

    bool refines() const {
        return options.precision == CudaPrecision::fp32;
    }

    // --- the mixture ---

    void set_conditioning(const Conditioning& c) {
        if (c.shift != conditioning.shift || c.scale != conditioning.scale) {
            kept.clear();
            keep_full = false;
        }
        conditioning = c;
        shift.reserve(d, "the shift of the rows");
        FLASHGMM_CUDA(cudaMemcpyAsync(
                shift.get(),
                conditioning.shift.data(),
                d * sizeof(float),
                cudaMemcpyHostToDevice,
                compute));
    }

    /** How wrong fp16 can make a logit, in bits, for a row at the typical
     * distance from a component: |x - mu|^2 moves by 2 |x - mu| e + e^2 if
     * the rounding moves x - mu by e, and e is about 2^-11 |x|.
     */
    double rounding_slack(const Mixture& mixture) const {
        const double e = std::ldexp(1.0, -11) *
                std::sqrt(d * conditioning.global_variance);
        double slack = 0;
        for (const double variance : mixture.variances) {
            slack = std::max(
                    slack,
                    (2 * std::sqrt(d * variance) * e + e * e) *
                            std::numbers::log2e / (2 * variance));
        }
        return slack;
    }

    void upload(const Mixture& mixture) {
        k = mixture.k;
        d = mixture.d;
        const int64_t k_padded = HalfComponents::padded(k);
        const int64_t d_padded = HalfLayout::padded(d);
        means.reserve(k * d, "the means");
        precision.reserve(k, "the precisions");
        offset.reserve(k, "the offsets");
        half_means.reserve(k_padded * d_padded, "the fp16 means");
        constants.reserve(k_padded, "the components' constants");
        mixture_staging.reserve(k * (d + 2), "the mixture");

        // The former upload may still be reading the staging memory.
        compute.synchronize();
        float* staged = mixture_staging.get();
        std::memcpy(staged, mixture.means.data(), k * d * sizeof(float));
        std::vector<double> log2_norm(k);
        log2_base = -INFINITY;
        for (int64_t c = 0; c < k; ++c) {
            log2_norm[c] = std::log2(mixture.weights[c]) -
                    0.5 * d *
                            std::log2(
                                    2 * std::numbers::pi *
                                    mixture.variances[c]);
            log2_base = std::max(log2_base, log2_norm[c]);
        }
        for (int64_t c = 0; c < k; ++c) {
            staged[k * d + c] =
                    float(std::numbers::log2e / (2 * mixture.variances[c]));
            staged[k * d + k + c] = float(log2_norm[c] - log2_base);
        }
        const auto copy = [&](float* to, const float* from, int64_t size) {
            FLASHGMM_CUDA(cudaMemcpyAsync(
                    to,
                    from,
                    size * sizeof(float),
                    cudaMemcpyHostToDevice,
                    compute));
        };
        copy(means.get(), staged, k * d);
        copy(precision.get(), staged + k * d, k);
        copy(offset.get(), staged + k * d + k, k);
        components = {k, d, means.get(), precision.get(), offset.get()};
        half_components = {
                k_padded / HalfComponents::kTile,
                d_padded,
                half_means.get(),
                constants.get()};
    }

    void begin(const Mixture& mixture, const Conditioning& c) {
        FLASHGMM_THROW_IF_NOT_FMT(
                mixture.k > 0 && mixture.d > 0 &&
                        mixture.k < (int64_t(1) << 31),
                "cannot work with k = %lld components of dimension d = %lld",
                static_cast<long long>(mixture.k),
                static_cast<long long>(mixture.d));
        upload(mixture);
        set_conditioning(c);
        slack_bits = rounding_slack(mixture);
        sparse = options.precision != CudaPrecision::reference &&
                SparsePosterior::supported() &&
                largest_magnitude(mixture.means) < kLargestMean &&
                (!refines() || slack_bits < kMostSlack);
        if (sparse) {
            condition_means(components, half_components, compute);
        }
        const int64_t size = stats_size();
        device_stats.reserve(size, "the statistics");
        FLASHGMM_CUDA(cudaMemsetAsync(
                device_stats.get(), 0, size * sizeof(double), compute));
        rows_seen = 0;
        dense_seen = 0;
        launch_rows = std::min( // recover from starting over
                2 * launch_rows,
                std::max(options.max_launch_rows, kLeastRows));
        profiler.clear();
    }

    // --- one launch ---

    static constexpr int64_t kRowScalars = sizeof(RowSums) / sizeof(double);

    int64_t stats_size() const {
        return k * (d + 2) + kRowScalars + 1;
    }

    /// Space for launches of up to n rows; fewer rows if memory is short.
    void reserve_launch(int64_t n) {
        for (;;) {
            launch_rows = std::min(launch_rows, options.max_launch_rows);
            const int64_t rows = std::min(
                    HalfRows::padded_rows(n),
                    HalfRows::padded_rows(launch_rows));
            try {
                reserve_launch_exactly(rows);
                return;
            } catch (const OutOfMemory&) {
                if (rows <= kLeastRows) {
                    throw;
                }
                launch_rows = rows / 2;
            }
        }
    }

    void reserve_launch_exactly(int64_t rows) {
        const int64_t most =
                std::max({rows * std::min(kPairsOfRow, k), kLeastPairs, k});
        pairs.reserve(most, "the pairs");
        sorted.reserve(most, "the sorted pairs");
        capacity = int64_t(pairs.size());
        dense_list.reserve(rows, "the list of dense rows");
        state.reserve(1, "the counters");
        row_sums.reserve(ChunkOutput::kMaxBlocks, "the row sums");
        host_state.reserve(1, "the counters");
        range_begin.reserve(rows, "the rows' pairs");
        range_count.reserve(rows, "the rows' pairs");
        range_tail.reserve(rows, "the rows' pairs");
        const int64_t buckets = std::max(k, Buckets::kMost);
        counts.reserve(buckets * kCountStride, "the pair counts");
        offsets.reserve(buckets + 1, "the buckets of pairs");
        segment_offsets.reserve(buckets + 1, "the buckets of pairs");
        const int64_t segments = PairSums::max_segments(capacity, buckets);
        segment_bucket.reserve(segments, "the segments");
        partial.reserve(
                segments * PairSums::partial_stride(d), "the segments' sums");
        logits.reserve(std::max(kDenseLogits, k), "the dense logits");
        if (sparse) {
            groups.reserve(
                    rows * kGroupsOfRow +
                            SparsePosterior::streams(rows) * kLeastGroups,
                    "the kept logits");
            group_ranges.reserve(
                    rows * 4 * KeptLogits::kParts, "the kept logits");
            largest.reserve(rows * KeptLogits::kParts, "the largest logits");
            second.reserve(rows * KeptLogits::kParts, "the largest logits");
            seeds.reserve(rows, "the largest logits");
        }
    }

    /// @param n    rows of the launch
    ChunkOutput output(int64_t n) const {
        ChunkOutput out;
        out.buckets = Buckets::of(n, k, HalfLayout::padded(d) * 2);
        out.pairs = {
                uint32_t(std::min<int64_t>(capacity, 0xFFFFFFF0)), pairs.get()};
        out.counts = counts.get();
        out.dense_rows = dense_list.get();
        out.state = state.get();
        out.row_sums = row_sums.get();
        return out;
    }

    /// @param n    rows of the launch
    void clear_state(int64_t n) {
        FLASHGMM_CUDA(
                cudaMemsetAsync(state.get(), 0, sizeof(ChunkState), compute));
        const int64_t size = int64_t(output(n).buckets.count) * kCountStride;
        FLASHGMM_CUDA(cudaMemsetAsync(
                counts.get(), 0, size * sizeof(uint32_t), compute));
    }

    void copy_state() {
        FLASHGMM_CUDA(cudaMemcpyAsync(
                host_state.get(),
                state.get(),
                sizeof(ChunkState),
                cudaMemcpyDeviceToHost,
                compute));
        state_copied.record(compute);
    }

    PairSums pair_sums(const FloatRows& rows, const HalfRows& half) const {
        PairSums sums;
        sums.components = components;
        sums.half_rows = half;
        sums.float_rows = rows;
        sums.chunk = output(rows.n);
        sums.offsets = offsets.get();
        sums.segment_offsets = segment_offsets.get();
        sums.segment_bucket = segment_bucket.get();
        sums.sorted = sorted.get();
        sums.partial = partial.get();
        sums.stats = device_stats.get();
        return sums;
    }

    /// Sorts the pairs and adds them to the statistics.
    void sum_pairs(const PairSums& sums) {
        if (options.deterministic) {
            state_copied.synchronize();
            if (!sums.chunk.valid(*host_state.get())) {
                return;
            }
        }
        profiler.time(&CudaTimes::sort, compute, [&] {
            sums.locate(compute);
            if (options.deterministic) {
                sort_pairs(sums, host_state.get()->pairs, compute);
            } else {
                sums.scatter(compute);
            }
        });
        profiler.time(&CudaTimes::sum, compute, [&] { sums.sum(compute); });
    }

    KeptLogits kept_logits(int64_t n) const {
        return {groups.get(),
                uint32_t(groups.size() / SparsePosterior::streams(n)),
                group_ranges.get(),
                largest.get(),
                second.get()};
    }

    SparsePosterior sparse_posterior(
            const HalfRows& half,
            float min_responsibility) const {
        SparsePosterior pass;
        pass.rows = half;
        pass.components = half_components;
        pass.min_responsibility = min_responsibility;
        if (refines()) {
            pass.z_error = 0x1p-24f;
        }
        pass.kept = kept_logits(half.n);
        return pass;
    }

    EmitPairs emit_pairs(const FloatRows& rows, const SparsePosterior& pass)
            const {
        EmitPairs emit;
        emit.n = rows.n;
        emit.weights = rows.weights;
        emit.components = components;
        emit.kept = pass.kept;
        emit.min_responsibility = pass.min_responsibility;
        emit.second_slack = pass.second_slack;
        emit.out = output(rows.n);
        if (rows.n > kRoomyRows) {
            emit.out.dense_limit = uint32_t(rows.n / kDenseShare);
        }
        return emit;
    }

    RowRanges row_ranges() const {
        return {range_begin.get(), range_count.get(), range_tail.get()};
    }

    RefinePairs refine_pairs(const FloatRows& rows) const {
        RefinePairs refine;
        refine.rows = rows;
        refine.components = components;
        refine.ranges = row_ranges();
        refine.out = output(rows.n);
        return refine;
    }

    /// After copy_state(): whether the launch must be repeated with fewer
    /// rows.
    bool overflowed(const ChunkOutput& out) {
        state_copied.synchronize();
        return !out.valid(*host_state.get());
    }

    /// The rows that the sparse way left out, in order.
    int64_t take_dense_list() {
        const int64_t count = host_state.get()->dense_rows;
        if (count > 1 && options.deterministic) {
            std::vector<uint32_t> list(count);
            FLASHGMM_CUDA(cudaMemcpy(
                    list.data(),
                    dense_list.get(),
                    count * sizeof(uint32_t),
                    cudaMemcpyDeviceToHost));
            std::sort(list.begin(), list.end());
            FLASHGMM_CUDA(cudaMemcpy(
                    dense_list.get(),
                    list.data(),
                    count * sizeof(uint32_t),
                    cudaMemcpyHostToDevice));
        }
        return count;
    }

    /// @param best     in and out, component of each row, or null
    void accumulate_sparse(
            const FloatRows& rows,
            const HalfRows& half,
            uint32_t* best) {
        clear_state(rows.n);
        SparsePosterior pass = sparse_posterior(
                half,
                float(options.min_responsibility *
                      (refines() ? std::exp2(-slack_bits) : 1)));
        if (best != nullptr) {
            const SeedRows seed{half, half_components, k, best, seeds.get()};
            pass.seeds = seeds.get();
            profiler.time(
                    &CudaTimes::seed, compute, [&] { seed.launch(compute); });
        }
        profiler.time(
                &CudaTimes::posterior, compute, [&] { pass.launch(compute); });
        EmitPairs emit = emit_pairs(rows, pass);
        emit.best = best;
        if (refines()) {
            emit.ranges = row_ranges();
        }
        profiler.time(&CudaTimes::emit, compute, [&] { emit.launch(compute); });
        PairSums sums = pair_sums(rows, refines() ? HalfRows{} : half);
        sums.row_sum_blocks = emit.blocks();
        if (refines()) {
            const RefinePairs refine = refine_pairs(rows);
            profiler.time(&CudaTimes::refine, compute, [&] {
                refine.launch(compute);
            });
            sums.row_sum_blocks = refine.blocks();
        }
        sums.chunk.dense_limit = emit.out.dense_limit;
        copy_state();
        sum_pairs(sums);
        if (overflowed(sums.chunk)) {
            const int64_t first = HalfRows::padded_rows((rows.n + 1) / 2);
            launch_rows = std::min(launch_rows, first);
            accumulate_sparse(rows.slice(0, first), half.slice(0, first), best);
            accumulate_sparse(
                    rows.slice(first, rows.n - first),
                    half.slice(first, rows.n - first),
                    best ? best + first : nullptr);
            return;
        }
        const int64_t dense = take_dense_list();
        if (dense > 0) {
            accumulate_dense(rows, dense_list.get(), dense, best);
        }
    }

    DensePosterior dense_posterior(const FloatRows& rows, const uint32_t* list)
            const {
        DensePosterior posterior;
        posterior.rows = rows;
        posterior.components = components;
        posterior.list = list;
        posterior.logits = logits.get();
        return posterior;
    }

    /// Calls work(posterior) for batches of rows whose logits fit.
    template <class Work>
    void for_dense_batches(
            const FloatRows& rows,
            const uint32_t* list,
            int64_t count,
            Work&& work) {
        const int64_t batch = DensePosterior::rows_in(
                std::min<int64_t>(logits.size(), capacity), k);
        for (int64_t first = 0; first < count; first += batch) {
            DensePosterior posterior =
                    dense_posterior(rows, list ? list + first : nullptr);
            posterior.first = first;
            posterior.count = std::min(batch, count - first);
            posterior.launch(compute);
            work(posterior);
        }
    }

    void accumulate_dense(
            const FloatRows& rows,
            const uint32_t* list,
            int64_t count,
            uint32_t* best) {
        dense_seen += count;
        profiler.time(&CudaTimes::dense, compute, [&] {
            for_dense_batches(
                    rows, list, count, [&](const DensePosterior& posterior) {
                        clear_state(rows.n);
                        DensePairs emit;
                        emit.posterior = posterior;
                        // All that is left out stays under the bound.
                        emit.min_responsibility =
                                float(options.min_responsibility / k);
                        emit.out = output(rows.n);
                        emit.best = best;
                        emit.launch(compute);
                        PairSums sums = pair_sums(rows, HalfRows{});
                        sums.row_sum_blocks = emit.blocks();
                        copy_state();
                        sums.locate(compute);
                        if (options.deterministic) {
                            state_copied.synchronize();
                            sort_pairs(sums, host_state.get()->pairs, compute);
                        } else {
                            sums.scatter(compute);
                        }
                        sums.sum(compute);
                    });
        });
    }

    void accumulate_rows(const ResidentRows& r) {
        reserve_launch(r.rows.n);
        for (int64_t begin = 0; begin < r.rows.n;) {
            const int64_t count = std::min(
                    HalfRows::padded_rows(launch_rows), r.rows.n - begin);
            const FloatRows rows = r.rows.slice(begin, count);
            if (sparse) {
                accumulate_sparse(
                        rows,
                        r.half_rows.slice(begin, count),
                        r.best.get() ? r.best.get() + begin : nullptr);
            } else {
                accumulate_dense(rows, nullptr, count, nullptr);
            }
            begin += count;
        }
    }

    // --- rows ---

    void condition(ResidentRows& r) {
        if (!sparse) {
            return;
        }
        const int64_t padded = HalfRows::padded_rows(r.rows.n);
        const int64_t d_padded = HalfLayout::padded(d);
        r.half.reserve(padded * d_padded, "the fp16 rows");
        r.squared.reserve(padded, "the rows' norms");
        r.half_rows = {r.rows.n, d_padded, r.half.get(), r.squared.get()};
        profiler.time(&CudaTimes::condition, compute, [&] {
            condition_rows(r.rows, r.half_rows, compute);
        });
    }

    FloatRows view(int64_t n, const float* x, const float* weights) const {
        FloatRows rows;
        rows.n = n;
        rows.d = d;
        rows.x = x;
        rows.weights = weights;
        rows.shift = shift.get();
        rows.inverse_scale = float(1 / conditioning.scale);
        return rows;
    }

    /// Copies to the device on the copying stream. Pageable memory goes
    /// through two pinned buffers, one being filled while the other is copied.
    void copy_in(float* to, const float* from, int64_t size) {
        if (memory_of(from) != Memory::pageable) {
            FLASHGMM_CUDA(cudaMemcpyAsync(
                    to,
                    from,
                    size * sizeof(float),
                    cudaMemcpyDefault,
                    copying));
            return;
        }
        const int64_t step = kStagingBytes / int64_t(sizeof(float));
        int use = 0;
        for (int64_t done = 0; done < size; done += step, use ^= 1) {
            const int64_t part = std::min(step, size - done);
            staging_free[use].synchronize();
            staging[use].reserve(std::min(step, size), "rows on their way");
            std::memcpy(staging[use].get(), from + done, part * sizeof(float));
            FLASHGMM_CUDA(cudaMemcpyAsync(
                    to + done,
                    staging[use].get(),
                    part * sizeof(float),
                    cudaMemcpyHostToDevice,
                    copying));
            staging_free[use].record(copying);
        }
    }

    void fill(
            ResidentRows& r,
            int64_t n,
            const float* x,
            const float* weights) {
        r.x.reserve(n * d, "the rows");
        copy_in(r.x.get(), x, n * d);
        if (weights != nullptr) {
            r.weights.reserve(n, "the row weights");
            copy_in(r.weights.get(), weights, n);
        }
        r.rows = view(n, r.x.get(), weights ? r.weights.get() : nullptr);
    }

    /// Rows that stay on the device, or null if there is no room for them.
    ResidentRows* keep(int64_t n, const float* x, const float* weights) {
        const RowsKey key{x, weights, n};
        const auto found = kept.find(key);
        if (found != kept.end()) {
            ResidentRows& r = found->second;
            r.rows.shift = shift.get();
            if (sparse && r.half_rows.x == nullptr) {
                condition(r);
            }
            return &r;
        }
        if (keep_full) {
            return nullptr;
        }
        try {
            ResidentRows r;
            if (memory_of(x) == Memory::device) {
                r.rows = view(n, x, weights);
            } else {
                fill(r, n, x, weights);
                slot_copied[0].record(copying);
                compute.wait(slot_copied[0]);
            }
            condition(r);
            r.best.reserve(n, "the rows' components");
            FLASHGMM_CUDA(cudaMemsetAsync(
                    r.best.get(), 0xFF, r.best.bytes(), compute));
            return &(kept[key] = std::move(r));
        } catch (const OutOfMemory&) {
            copying.synchronize();
            compute.synchronize();
            keep_full = true;
            return nullptr;
        }
    }

    /// Rows of host memory that are on the device at once.
    int64_t streamed_rows() const {
        constexpr int64_t kBytes = 256 << 20;
        return std::clamp<int64_t>(
                kBytes / (4 * d),
                kLeastRows,
                std::max(kLeastRows, options.max_launch_rows));
    }

    /// Calls work(rows, first row) with all rows on the device, in pieces.
    template <class Work>
    void for_resident_rows(
            int64_t n,
            const float* x,
            const float* weights,
            Work&& work) {
        if (std::less_equal<>()(stable_begin, x) &&
            std::less_equal<>()(x + n * d, stable_end)) {
            if (ResidentRows* r = keep(n, x, weights)) {
                work(*r, 0);
                return;
            }
        }
        if (memory_of(x) == Memory::device) {
            const int64_t step = HalfRows::padded_rows(launch_rows);
            for (int64_t first = 0; first < n; first += step) {
                in_place.rows =
                        view(std::min(step, n - first),
                             x + first * d,
                             weights ? weights + first : nullptr);
                condition(in_place);
                work(in_place, first);
            }
            return;
        }
        const int64_t step = streamed_rows();
        int use = 0;
        for (int64_t first = 0; first < n; first += step, use ^= 1) {
            ResidentRows& r = slots[use];
            copying.wait(slot_free[use]);
            fill(r,
                 std::min(step, n - first),
                 x + first * d,
                 weights ? weights + first : nullptr);
            slot_copied[use].record(copying);
            profiler.time(&CudaTimes::copy_rows, compute, [&] {
                compute.wait(slot_copied[use]);
            });
            condition(r);
            work(r, first);
            slot_free[use].record(compute);
        }
        // The caller may change the rows once this returns.
        copying.synchronize();
    }

    // --- results ---

    void collect() {
        if (stats.k() != k || stats.d() != d) {
            pinned_stats.reset();
            stats = SufficientStats(k, d);
            pinned_stats.pin(stats.flat().data(), stats.flat().size_bytes());
        }
        // counts, squared and sums lie here as they do there.
        const int64_t vectors = k * (d + 2);
        host_scalars.reserve(kRowScalars + 1, "the statistics");
        const auto copy = [&](double* to, const double* from, int64_t size) {
            FLASHGMM_CUDA(cudaMemcpyAsync(
                    to,
                    from,
                    size * sizeof(double),
                    cudaMemcpyDeviceToHost,
                    compute));
        };
        copy(stats.flat().data(), device_stats.get(), vectors);
        copy(host_scalars.get(), device_stats.get() + vectors, kRowScalars + 1);
        compute.synchronize();
        profiler.collect();
        const double* sums = host_scalars.get();
        using Stats = SufficientStats;
        stats.scalar(Stats::kWeight) = sums[0];
        stats.scalar(Stats::kLogLikelihood) =
                std::numbers::ln2 * (sums[1] + log2_base * sums[0]);
        stats.scalar(Stats::kObjective) = sums[2];
        stats.scalar(Stats::kDroppedMass) = sums[3];
        stats.scalar(Stats::kPairs) = sums[4];
        stats.scalar(Stats::kRows) = double(rows_seen);
    }

    void assign_dense(
            const FloatRows& rows,
            const uint32_t* list,
            int64_t count,
            int64_t m,
            int64_t first,
            float user_offset) {
        for_dense_batches(
                rows, list, count, [&](const DensePosterior& posterior) {
                    DenseTop top;
                    top.posterior = posterior;
                    top.m = m;
                    const int64_t at = first + (list ? 0 : posterior.first);
                    top.components = top_components.get() + at * m;
                    top.log_scores = top_scores.get() + at * m;
                    top.log_z = top_log_z.get() + at;
                    top.offset = user_offset;
                    top.launch(compute);
                });
    }

    /// Results of row i of rows go to first + i.
    void assign_sparse(
            const FloatRows& rows,
            const HalfRows& half,
            int64_t m,
            int64_t first,
            float user_offset) {
        clear_state(rows.n);
        SparsePosterior pass = sparse_posterior(
                half,
                float(options.min_responsibility * std::exp2(-slack_bits)));
        pass.second_slack = m > 1 ? float(1 + slack_bits) : -1;
        pass.launch(compute);
        EmitPairs emit = emit_pairs(rows, pass);
        emit.ranges = row_ranges();
        emit.launch(compute);
        RefinePairs refine = refine_pairs(rows);
        refine.m = m;
        refine.top_components = top_components.get() + first * m;
        refine.log_scores = top_scores.get() + first * m;
        refine.log_z = top_log_z.get() + first;
        refine.offset = user_offset;
        refine.launch(compute);
        copy_state();
        if (overflowed(emit.out)) {
            const int64_t split = HalfRows::padded_rows((rows.n + 1) / 2);
            assign_sparse(
                    rows.slice(0, split),
                    half.slice(0, split),
                    m,
                    first,
                    user_offset);
            assign_sparse(
                    rows.slice(split, rows.n - split),
                    half.slice(split, rows.n - split),
                    m,
                    first + split,
                    user_offset);
            return;
        }
        const int64_t dense = take_dense_list();
        if (dense > 0) {
            assign_dense(rows, dense_list.get(), dense, m, first, user_offset);
        }
    }

    void assign_rows(const ResidentRows& r, int64_t m, float user_offset) {
        reserve_launch(r.rows.n);
        top_components.reserve(r.rows.n * m, "the assigned components");
        top_scores.reserve(r.rows.n * m, "the log-scores");
        top_log_z.reserve(r.rows.n, "the log-densities");
        const bool use_tensor_cores =
                sparse && m <= 2 && m <= k && slack_bits < kMostSlack;
        for (int64_t begin = 0; begin < r.rows.n;) {
            const int64_t count = std::min(
                    HalfRows::padded_rows(launch_rows), r.rows.n - begin);
            const FloatRows rows = r.rows.slice(begin, count);
            if (use_tensor_cores) {
                assign_sparse(
                        rows,
                        r.half_rows.slice(begin, count),
                        m,
                        begin,
                        user_offset);
            } else {
                assign_dense(rows, nullptr, count, m, begin, user_offset);
            }
            begin += count;
        }
    }
};

CudaBackend::CudaBackend(CudaOptions options) {
    const std::string why = why_unavailable(options.device);
    FLASHGMM_THROW_IF_NOT_FMT(why.empty(), "%s", why.c_str());
    FLASHGMM_THROW_IF_NOT_FMT(
            options.min_responsibility >= 0 && options.min_responsibility < 1,
            "min_responsibility = %g is not in [0, 1)",
            options.min_responsibility);
    DeviceScope scope(options.device);
    impl_ = std::make_unique<Impl>(options);
}

CudaBackend::~CudaBackend() {
    int former = 0;
    if (cudaGetDevice(&former) == cudaSuccess) {
        FLASHGMM_CUDA_NO_THROW(cudaSetDevice(impl_->options.device));
        impl_.reset();
        FLASHGMM_CUDA_NO_THROW(cudaSetDevice(former));
    }
}

std::string CudaBackend::why_unavailable(int device) {
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess) {
        cudaGetLastError();
        return format("no usable CUDA device: %s", cudaGetErrorString(code));
    }
    if (device < 0 || device >= count) {
        return format(
                "there is no CUDA device %d: the driver reports %d",
                device,
                count);
    }
    return "";
}

int64_t CudaBackend::preferred_chunk(int64_t, int64_t d) const {
    return std::max<int64_t>(kLeastRows, (int64_t(1) << 30) / (4 * d));
}

void CudaBackend::begin(
        const Mixture& mixture,
        const Conditioning& conditioning) {
    DeviceScope scope(impl_->options.device);
    impl_->begin(mixture, conditioning);
}

void CudaBackend::accumulate(int64_t n, const float* x, const float* weights) {
    if (n == 0) {
        return;
    }
    DeviceScope scope(impl_->options.device);
    impl_->rows_seen += n;
    impl_->for_resident_rows(
            n, x, weights, [&](const ResidentRows& rows, int64_t) {
                impl_->accumulate_rows(rows);
            });
}

SufficientStats& CudaBackend::finish() {
    DeviceScope scope(impl_->options.device);
    impl_->collect();
    return impl_->stats;
}

void CudaBackend::assign(
        int64_t n,
        const float* x,
        int64_t m,
        int64_t* components,
        float* log_scores,
        float* log_z) {
    FLASHGMM_THROW_IF_NOT_FMT(
            m >= 1 && m <= impl_->k,
            "m = %lld is not between 1 and k = %lld",
            static_cast<long long>(m),
            static_cast<long long>(impl_->k));
    if (n == 0) {
        return;
    }
    DeviceScope scope(impl_->options.device);
    Impl& impl = *impl_;
    const float offset =
            float(impl.conditioning.log_density_offset() +
                  impl.log2_base * std::numbers::ln2);
    impl.for_resident_rows(
            n, x, nullptr, [&](const ResidentRows& r, int64_t first) {
                impl.assign_rows(r, m, offset);
                const auto copy =
                        [&](auto* to, const auto* from, int64_t size) {
                            FLASHGMM_CUDA(cudaMemcpyAsync(
                                    to,
                                    from,
                                    size * sizeof(*to),
                                    cudaMemcpyDefault,
                                    impl.compute));
                        };
                copy(components + first * m,
                     impl.top_components.get(),
                     r.rows.n * m);
                copy(log_scores + first * m,
                     impl.top_scores.get(),
                     r.rows.n * m);
                if (log_z != nullptr) {
                    copy(log_z + first, impl.top_log_z.get(), r.rows.n);
                }
                impl.compute.synchronize();
            });
}

void CudaBackend::keep_rows(const float* x, int64_t size) {
    DeviceScope scope(impl_->options.device);
    impl_->compute.synchronize();
    impl_->kept.clear();
    impl_->keep_full = false;
    impl_->stable_begin = x;
    impl_->stable_end = x + size;
}

int64_t CudaBackend::dense_rows() const {
    return impl_->dense_seen;
}

bool CudaBackend::on_tensor_cores() const {
    return impl_->sparse;
}

const CudaTimes& CudaBackend::times() const {
    return impl_->profiler.times;
}

} // namespace faiss_flashgmm
