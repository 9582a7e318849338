#include <faiss_flashgmm/gpu/EStep.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace faiss_flashgmm::gpu {

namespace {

/// Sums of a whole launch, and the number of pairs, follow the components'.
constexpr int64_t kRowScalars = sizeof(RowSums) / sizeof(double);
constexpr int64_t kScalars = kRowScalars + 1;

} // namespace

void EStep::begin() {
    const int64_t size = mixture_.k() * (mixture_.d() + 2) + kScalars;
    device_stats_.reserve(size, "the statistics");
    FLASHGMM_CUDA(cudaMemsetAsync(
            device_stats_.get(), 0, size * sizeof(double), context_.compute));
    rows_ = 0;
    dense_rows_ = 0;
    launch_.relax_rows();
    context_.timer.clear();
}

void EStep::accumulate(const ResidentRows& r) {
    rows_ += r.rows.n;
    launch_.reserve(r.rows.n);
    for (int64_t begin = 0; begin < r.rows.n;) {
        const int64_t count = std::min(launch_.rows(), r.rows.n - begin);
        const FloatRows rows = r.rows.slice(begin, count);
        if (mixture_.sparse()) {
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

void EStep::accumulate_sparse(
        const FloatRows& rows,
        const HalfRows& half,
        uint32_t* best) {
    PhaseTimer<CudaTimes>& timer = context_.timer;
    const cudaStream_t stream = context_.compute;
    const bool refines = context_.refines();
    launch_.clear(rows.n);
    SparsePosterior pass = launch_.sparse_posterior(
            half,
            float(context_.options.min_responsibility *
                  (refines ? std::exp2(-mixture_.slack_bits()) : 1)));
    if (best != nullptr) {
        const SeedRows seed = launch_.seed_rows(half, best);
        pass.seeds = seed.seeds;
        timer.time(&CudaTimes::seed, stream, [&] { seed.launch(stream); });
    }
    timer.time(&CudaTimes::posterior, stream, [&] { pass.launch(stream); });
    EmitPairs emit = launch_.emit_pairs(rows, pass);
    emit.best = best;
    if (refines) {
        emit.ranges = launch_.row_ranges();
    }
    timer.time(&CudaTimes::emit, stream, [&] { emit.launch(stream); });
    PairSums sums = launch_.pair_sums(
            rows, refines ? HalfRows{} : half, device_stats_.get());
    sums.row_sum_blocks = emit.blocks();
    if (refines) {
        const RefinePairs refine = launch_.refine_pairs(rows);
        timer.time(&CudaTimes::refine, stream, [&] { refine.launch(stream); });
        sums.row_sum_blocks = refine.blocks();
    }
    sums.chunk.dense_limit = emit.out.dense_limit;
    launch_.copy_state();
    if (!context_.options.deterministic || sums.chunk.valid(launch_.state())) {
        timer.time(&CudaTimes::sort, stream, [&] { sort(sums); });
        timer.time(&CudaTimes::sum, stream, [&] { sums.sum(stream); });
    }
    if (!sums.chunk.valid(launch_.state())) { // nothing was added
        const int64_t first = HalfRows::padded_rows((rows.n + 1) / 2);
        launch_.limit_rows(first);
        accumulate_sparse(rows.slice(0, first), half.slice(0, first), best);
        accumulate_sparse(
                rows.slice(first, rows.n - first),
                half.slice(first, rows.n - first),
                best ? best + first : nullptr);
        return;
    }
    if (const int64_t dense = launch_.state().dense_rows; dense > 0) {
        accumulate_dense(rows, launch_.dense_list(), dense, best);
    }
}

void EStep::accumulate_dense(
        const FloatRows& rows,
        const uint32_t* list,
        int64_t count,
        uint32_t* best) {
    dense_rows_ += count;
    const cudaStream_t stream = context_.compute;
    const auto accumulate = [&](const DensePosterior& posterior) {
        launch_.clear(rows.n);
        DensePairs emit;
        emit.posterior = posterior;
        // All that is left out stays under the bound.
        emit.min_responsibility = float(
                context_.options.min_responsibility / double(mixture_.k()));
        emit.out = launch_.output(rows.n);
        emit.best = best;
        emit.launch(stream);
        PairSums sums =
                launch_.pair_sums(rows, HalfRows{}, device_stats_.get());
        sums.row_sum_blocks = emit.blocks();
        launch_.copy_state();
        sort(sums);
        sums.sum(stream);
    };
    context_.timer.time(&CudaTimes::dense, stream, [&] {
        launch_.for_dense_batches(rows, list, count, accumulate);
    });
}

/// By bucket; in deterministic mode waits for the counters.
void EStep::sort(const PairSums& sums) {
    sums.locate(context_.compute);
    if (context_.options.deterministic) {
        sort_pairs(sums, launch_.state().pairs, context_.compute);
    } else {
        sums.scatter(context_.compute);
    }
}

SufficientStats& EStep::finish() {
    const int64_t k = mixture_.k();
    const int64_t d = mixture_.d();
    if (stats_.k() != k || stats_.d() != d) {
        pinned_stats_.reset();
        stats_ = SufficientStats(k, d);
        pinned_stats_.pin(stats_.flat().data(), stats_.flat().size_bytes());
    }
    // counts, squared and sums lie here as they do there.
    const int64_t vectors = k * (d + 2);
    host_scalars_.reserve(kScalars, "the statistics");
    const auto copy = [&](double* to, const double* from, int64_t size) {
        FLASHGMM_CUDA(cudaMemcpyAsync(
                to,
                from,
                size * sizeof(double),
                cudaMemcpyDeviceToHost,
                context_.compute));
    };
    copy(stats_.flat().data(), device_stats_.get(), vectors);
    copy(host_scalars_.get(), device_stats_.get() + vectors, kScalars);
    context_.compute.synchronize();
    context_.timer.collect();
    const double* sums = host_scalars_.get();
    using S = SufficientStats;
    stats_.scalar(S::kWeight) = sums[0];
    stats_.scalar(S::kLogLikelihood) =
            std::numbers::ln2 * (sums[1] + mixture_.log2_base() * sums[0]);
    stats_.scalar(S::kObjective) = sums[2];
    stats_.scalar(S::kDroppedMass) = sums[3];
    stats_.scalar(S::kPairs) = sums[4];
    stats_.scalar(S::kRows) = double(rows_);
    return stats_;
}

} // namespace faiss_flashgmm::gpu
