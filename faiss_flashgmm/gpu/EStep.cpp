#include <faiss_flashgmm/gpu/EStep.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include <faiss_flashgmm/gpu/kernels/MaximizeMixture.cuh>

namespace faiss_flashgmm::gpu {

namespace {

/// Sums of a whole launch, and the number of pairs, follow the components'.
constexpr int64_t kRowScalars = sizeof(RowSums) / sizeof(double);
constexpr int64_t kScalars = kRowScalars + 1;

/// Kept groups of logits a row, on average, past which rows are diffuse, and
/// under which they no longer are (when fewer are kept).
constexpr int64_t kDiffuse = 16;
constexpr int64_t kConcentrated = 4;

} // namespace

int64_t EStep::stats_size(int64_t k, int64_t d) {
    return k * (d + 2) + kScalars;
}

void EStep::begin() {
    const int64_t size = stats_size(mixture_.k(), mixture_.d());
    device_stats_.reserve(size, "the statistics");
    FLASHGMM_CUDA(cudaMemsetAsync(
            device_stats_.get(), 0, size * sizeof(double), context_.compute));
    rows_ = 0;
    dense_rows_ = 0;
    launch_.relax_rows();
    context_.timer.clear();
}

void EStep::accumulate(ResidentRows& r) {
    rows_ += r.rows.n;
    launch_.reserve(r.rows.n);
    Work work;
    if (r.memory.best.get() != nullptr) {
        work.memory = &r.memory;
        work.follows = r.memory.mixture + 1 == mixture_.number();
        r.memory.mixture = -1; // until all of it is of this mixture
    }
    for (int64_t begin = 0; begin < r.rows.n;) {
        const int64_t count = std::min(launch_.rows(), r.rows.n - begin);
        work.rows = r.rows.slice(begin, count);
        work.first = begin;
        if (mixture_.sparse()) {
            work.half = r.half_rows.slice(begin, count);
            accumulate_sparse(work);
        } else {
            accumulate_dense(work.rows, nullptr, count, nullptr);
        }
        begin += count;
    }
    if (mixture_.sparse()) {
        r.memory.mixture = mixture_.number();
    }
}

EStep::Work EStep::Work::slice(int64_t begin, int64_t count) const {
    Work part = *this;
    part.rows = rows.slice(begin, count);
    part.half = half.slice(begin, count);
    part.first += begin;
    return part;
}

/// Bounds the rows' largest logits by what is remembered of them.
void EStep::seed(const Work& work, SparsePosterior& pass) {
    SeedRows seed = launch_.seed_rows(work.half, work.best());
    if (work.follows) {
        seed.distances = work.memory->distances.get() + work.first;
        seed.moves = mixture_.moves();
    }
    context_.timer.time(&CudaTimes::seed, context_.compute, [&] {
        seed.launch(context_.compute);
    });
    pass.seeds = seed.seeds;
}

/// Room for the launch's pairs in their buckets. Null: all are to be sorted.
RowMemory::Room* EStep::room_of(const Work& work) {
    if (work.memory == nullptr || context_.options.deterministic ||
        context_.refines()) {
        return nullptr;
    }
    DeviceMemory& memory = context_.memory;
    RowMemory::Room& room =
            work.memory->rooms.try_emplace(work.first, memory).first->second;
    const Buckets buckets = launch_.output(work.rows.n).buckets;
    try {
        if (!(room.buckets == buckets)) {
            room = RowMemory::Room(memory);
            room.present.reserve(buckets.count + 1, "the room of buckets");
            room.next.reserve(buckets.count + 1, "the room of buckets");
            FLASHGMM_CUDA(cudaMemsetAsync(
                    room.present.get(),
                    0,
                    room.present.bytes(),
                    context_.compute));
            room.buckets = buckets;
        }
        return &room;
    } catch (const OutOfMemory&) {
        room = RowMemory::Room(memory);
        return nullptr;
    }
}

void EStep::accumulate_sparse(const Work& work) {
    const SourceRows& rows = work.rows;
    PhaseTimer<CudaTimes>& timer = context_.timer;
    const cudaStream_t stream = context_.compute;
    const bool refines = context_.refines();
    launch_.clear(rows.n);
    SparsePosterior pass = launch_.sparse_posterior(
            work.half,
            float(context_.options.min_responsibility *
                  (refines ? std::exp2(-mixture_.slack_bits()) : 1)),
            diffuse_ && !refines);
    if (work.memory != nullptr) {
        seed(work, pass);
    }
    timer.time(&CudaTimes::posterior, stream, [&] { pass.launch(stream); });
    RowMemory::Room* room = room_of(work);
    EmitPairs emit = launch_.emit_pairs(rows, pass);
    if (work.memory != nullptr) {
        emit.best = work.best();
        emit.distances = work.memory->distances.get() + work.first;
    }
    if (room != nullptr) {
        emit.out.room = room->present.get();
    }
    if (refines) {
        emit.ranges = launch_.row_ranges();
    }
    timer.time(&CudaTimes::emit, stream, [&] { emit.launch(stream); });
    PairSums sums = launch_.pair_sums(
            rows, refines ? HalfRows{} : work.half, device_stats_.get());
    sums.row_sum_blocks = emit.blocks();
    if (refines) {
        const RefinePairs refine = launch_.refine_pairs(rows);
        timer.time(&CudaTimes::refine, stream, [&] { refine.launch(stream); });
        sums.row_sum_blocks = refine.blocks();
    }
    sums.chunk.dense_limit = emit.out.dense_limit;
    if (room != nullptr) {
        sums.chunk.room = room->present.get();
        sums.next_room = room->next.get();
        sums.room_limit = launch_.room_limit();
    }
    launch_.copy_state();
    if (!context_.options.deterministic || sums.chunk.valid(launch_.state())) {
        timer.time(&CudaTimes::sort, stream, [&] { sort(sums); });
        timer.time(&CudaTimes::sum, stream, [&] { sums.sum(stream); });
    }
    const ChunkState& state = launch_.state();
    if (!sums.chunk.valid(state)) { // nothing was added
        const int64_t split = HalfRows::padded_rows((rows.n + 1) / 2);
        launch_.limit_rows(split);
        accumulate_sparse(work.slice(0, split));
        accumulate_sparse(work.slice(split, rows.n - split));
        return;
    }
    if (room != nullptr) {
        std::swap(room->present, room->next);
    }
    if (work.memory != nullptr) { // rows without seeds keep more logits
        diffuse_ = int64_t(state.groups) >
                rows.n * (diffuse_ ? kConcentrated : kDiffuse);
    }
    if (state.dense_rows > 0) {
        accumulate_dense(
                rows, launch_.dense_list(), state.dense_rows, work.best());
    }
}

void EStep::accumulate_dense(
        const SourceRows& rows,
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
        sort_pairs(
                sums, launch_.state().pairs, sort_scratch_, context_.compute);
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
    const Backend::Sums sums =
            scalars(host_scalars_.get(), mixture_.log2_base());
    for (size_t i = 0; i < sums.size(); ++i) {
        stats_.scalar(SufficientStats::Scalar(i)) = sums[i];
    }
    return stats_;
}

Backend::Sums EStep::scalars(const double* row_sums, double log2_base) const {
    using S = SufficientStats;
    Backend::Sums sums{};
    sums[S::kWeight] = row_sums[0];
    sums[S::kLogLikelihood] =
            std::numbers::ln2 * (row_sums[1] + log2_base * row_sums[0]);
    sums[S::kObjective] = row_sums[2];
    sums[S::kDroppedMass] = row_sums[3];
    sums[S::kPairs] = row_sums[4];
    sums[S::kRows] = double(rows_);
    return sums;
}

void EStep::add(const EStep& other) {
    const int64_t size = stats_size(mixture_.k(), mixture_.d());
    others_stats_.reserve(size, "the statistics of another device");
    FLASHGMM_CUDA(cudaMemcpyPeerAsync(
            others_stats_.get(),
            context_.device,
            other.device_stats_.get(),
            other.context_.device,
            size * sizeof(double),
            context_.compute));
    add_statistics(
            size, others_stats_.get(), device_stats_.get(), context_.compute);
    rows_ += other.rows_;
    dense_rows_ += other.dense_rows_;
}

} // namespace faiss_flashgmm::gpu
