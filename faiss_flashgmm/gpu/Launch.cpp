#include <faiss_flashgmm/gpu/Launch.h>

#include <algorithm>
#include <vector>

namespace faiss_flashgmm::gpu {

namespace {

/// Pairs that a launch has room for: SIFT has 3 a row, GloVe 11.
constexpr int64_t kPairsOfRow = 16;
/// Room for pairs in their buckets, on average.
constexpr int64_t kRoomOfRow = 8;
/// Rows of the least launch, and pairs that they can have.
constexpr int64_t kLeastRows = HalfRows::kPadding;
constexpr int64_t kLeastPairs = kLeastRows * 8 * EmitPairs::kMostGroups;
/// Groups of logits that pass 1 can keep of a row, on average, in the largest
/// launch; there is more room in smaller ones.
constexpr int64_t kGroupsOfRow = 8;
constexpr int64_t kLeastGroups = 64; ///< of a thread in any launch
/// With a larger share of dense rows a launch starts over with fewer rows, as
/// long as it has more than these.
constexpr int64_t kDenseShare = 32;
constexpr int64_t kRoomyRows = 1 << 10;
/// Logits of the dense way that exist at once.
constexpr int64_t kDenseLogits = 1 << 22;

} // namespace

Launch::Launch(DeviceContext& context, const DeviceMixture& mixture)
        : context_(context),
          mixture_(mixture),
          rows_(std::max(context.options.max_launch_rows, kLeastRows)) {}

int64_t Launch::rows() const {
    return HalfRows::padded_rows(rows_);
}

void Launch::limit_rows(int64_t rows) {
    rows_ = std::max(std::min(rows_, rows), kLeastRows);
}

void Launch::relax_rows() {
    rows_ = std::min(
            2 * rows_, std::max(context_.options.max_launch_rows, kLeastRows));
}

void Launch::expect(int64_t n) {
    expected_ = n;
}

void Launch::secure() {
    const int64_t wanted = bytes(rows(), mixture_.k(), mixture_.d());
    if (pairs_.size() == 0 && context_.memory.available() < 2 * wanted) {
        reserve_exactly(kLeastRows);
    }
}

void Launch::reserve(int64_t n) {
    n = std::max(n, expected_);
    for (;;) {
        const int64_t rows = std::min(HalfRows::padded_rows(n), this->rows());
        try {
            reserve_exactly(rows);
            return;
        } catch (const OutOfMemory&) {
            release(); // else what is too large now stays
            if (rows <= kLeastRows) {
                throw;
            }
            limit_rows(rows / 2);
        }
    }
}

/// Elements of the buffers.
struct Launch::Sizes {
    Sizes(MatrixUnit unit, int64_t rows, int64_t k, int64_t d)
            : pairs(std::max(
                      {rows * std::min(kPairsOfRow, k), kLeastPairs, k})),
              buckets(Buckets::most(rows, k, 2 * HalfLayout::padded(d))) {
        pairs = std::min<int64_t>(pairs, 0xFFFFFFF0);
        sorted = pairs +
                std::min(rows * std::min(kRoomOfRow, k), 0xFFFFFFF0 - pairs);
        segments = PairSums::max_segments(pairs, buckets);
        partial = segments * PairSums::partial_stride(d);
        logits = std::max(kDenseLogits, k);
        if (unit != MatrixUnit::none) {
            const PassShape shape =
                    SparsePosterior::shape(unit, rows, HalfLayout::padded(d));
            groups = rows * kGroupsOfRow +
                    int64_t(shape.blocks) * shape.streams * kLeastGroups;
            parts = rows * shape.parts;
        }
    }

    int64_t pairs, sorted, buckets, segments, partial, logits;
    int64_t groups = 0, parts = 0; ///< on the tensor cores
};

int64_t Launch::bytes(int64_t rows, int64_t k, int64_t d) {
    const Sizes size(best_matrix_unit(), rows, k, d);
    return size.pairs * int64_t(sizeof(Pair)) +
            size.sorted * int64_t(sizeof(SortedPair)) +
            size.buckets * 4 * (kCountStride + 2) +
            size.segments * int64_t(sizeof(Segment)) + size.partial * 4 +
            size.logits * 4 + size.groups * int64_t(sizeof(LogitGroup)) +
            size.parts * 24 + rows * 20 +
            ChunkOutput::kMaxBlocks * int64_t(sizeof(RowSums)) + 8 +
            int64_t(sizeof(ChunkState));
}

void Launch::reserve_exactly(int64_t rows) {
    const Sizes size(
            mixture_.sparse() ? mixture_.matrix_unit() : MatrixUnit::none,
            rows,
            mixture_.k(),
            mixture_.d());
    pairs_.reserve(size.pairs, "the pairs");
    sorted_.reserve(size.sorted, "the sorted pairs");
    capacity_ = size.pairs;
    dense_list_.reserve(rows, "the list of dense rows");
    state_.reserve(1, "the counters");
    row_sums_.reserve(ChunkOutput::kMaxBlocks, "the row sums");
    host_state_.reserve(1, "the counters");
    range_begin_.reserve(rows, "the rows' pairs");
    range_count_.reserve(rows, "the rows' pairs");
    range_tail_.reserve(rows, "the rows' pairs");
    counts_.reserve(size.buckets * kCountStride, "the pair counts");
    offsets_.reserve(size.buckets + 1, "the buckets of pairs");
    segment_offsets_.reserve(size.buckets + 1, "the buckets of pairs");
    segments_.reserve(size.segments, "the segments");
    partial_.reserve(size.partial, "the segments' sums");
    logits_.reserve(size.logits, "the dense logits");
    if (mixture_.sparse()) {
        groups_.reserve(size.groups, "the kept logits");
        group_lists_.reserve(4 * size.parts, "the kept logits");
        largest_.reserve(size.parts, "the largest logits");
        tail_.reserve(size.parts, "the sums of the other logits");
        seeds_.reserve(rows, "the largest logits");
    }
}

void Launch::release() {
    const auto reset = [](auto&... buffers) { (buffers.reset(), ...); };
    reset(pairs_,
          counts_,
          dense_list_,
          state_,
          row_sums_,
          range_begin_,
          range_count_,
          range_tail_,
          groups_,
          group_lists_,
          largest_,
          tail_,
          seeds_,
          offsets_,
          segment_offsets_,
          segments_,
          sorted_,
          partial_,
          logits_);
}

void Launch::clear(int64_t n) {
    FLASHGMM_CUDA(cudaMemsetAsync(
            state_.get(), 0, sizeof(ChunkState), context_.compute));
    const int64_t size = int64_t(output(n).buckets.count) * kCountStride;
    FLASHGMM_CUDA(cudaMemsetAsync(
            counts_.get(), 0, size * sizeof(uint32_t), context_.compute));
}

ChunkOutput Launch::output(int64_t n) const {
    ChunkOutput out;
    out.buckets =
            Buckets::of(n, mixture_.k(), HalfLayout::padded(mixture_.d()) * 2);
    out.pairs = {uint32_t(capacity_), pairs_.get()};
    out.counts = counts_.get();
    out.sorted = sorted_.get();
    out.dense_rows = dense_list_.get();
    out.state = state_.get();
    out.row_sums = row_sums_.get();
    return out;
}

RowRanges Launch::row_ranges() const {
    return {range_begin_.get(), range_count_.get(), range_tail_.get()};
}

SparsePosterior Launch::sparse_posterior(
        const HalfRows& half,
        float min_responsibility,
        bool with_tail) const {
    SparsePosterior pass;
    pass.rows = half;
    pass.components = mixture_.half_components();
    pass.min_responsibility = min_responsibility;
    if (context_.refines()) {
        pass.z_error = 0x1p-24f;
    }
    pass.unit = mixture_.matrix_unit();
    pass.kept.shape = SparsePosterior::shape(pass.unit, half.n, half.d_padded);
    pass.kept.groups = groups_.get();
    pass.kept.groups_of_stream =
            KeptLogits::stream_size(int64_t(groups_.size()), pass.kept.shape);
    pass.kept.lists = group_lists_.get();
    pass.kept.largest = largest_.get();
    pass.kept.tail = with_tail ? tail_.get() : nullptr;
    return pass;
}

EmitPairs Launch::emit_pairs(
        const SourceRows& rows,
        const SparsePosterior& pass) const {
    EmitPairs emit;
    emit.n = rows.n;
    emit.weights = rows.weights;
    emit.components = mixture_.components();
    emit.kept = pass.kept;
    emit.min_responsibility = pass.min_responsibility;
    emit.m = pass.m;
    emit.slack = pass.slack;
    emit.out = output(rows.n);
    if (rows.n > kRoomyRows) {
        emit.out.dense_limit = uint32_t(rows.n / kDenseShare);
    }
    return emit;
}

RefinePairs Launch::refine_pairs(const SourceRows& rows) const {
    RefinePairs refine;
    refine.rows = rows;
    refine.components = mixture_.components();
    refine.ranges = row_ranges();
    refine.out = output(rows.n);
    return refine;
}

SeedRows Launch::seed_rows(const HalfRows& half, const uint32_t* best) const {
    SeedRows seed;
    seed.rows = half;
    seed.components = mixture_.half_components();
    seed.k = mixture_.k();
    seed.best = best;
    seed.seeds = seeds_.get();
    return seed;
}

PairSums Launch::pair_sums(
        const SourceRows& rows,
        const HalfRows& half,
        double* stats) const {
    PairSums sums;
    sums.components = mixture_.components();
    sums.half_rows = half;
    sums.source_rows = rows;
    sums.chunk = output(rows.n);
    sums.offsets = offsets_.get();
    sums.segment_offsets = segment_offsets_.get();
    sums.segments = segments_.get();
    sums.expected_pairs = std::min(last_pairs_, capacity_);
    sums.partial = partial_.get();
    sums.stats = stats;
    return sums;
}

int64_t Launch::dense_batch() const {
    return DensePosterior::rows_in(
            std::min<int64_t>(logits_.size(), capacity_), mixture_.k());
}

void Launch::copy_state() {
    FLASHGMM_CUDA(cudaMemcpyAsync(
            host_state_.get(),
            state_.get(),
            sizeof(ChunkState),
            cudaMemcpyDeviceToHost,
            context_.compute));
    state_copied_.record(context_.compute);
}

const ChunkState& Launch::state() {
    state_copied_.synchronize();
    last_pairs_ = host_state_.get()->pairs;
    return *host_state_.get();
}

const uint32_t* Launch::dense_list() {
    const int64_t count = state().dense_rows;
    if (count > 1 && context_.options.deterministic) {
        std::vector<uint32_t> list(count);
        FLASHGMM_CUDA(cudaMemcpy(
                list.data(),
                dense_list_.get(),
                count * sizeof(uint32_t),
                cudaMemcpyDeviceToHost));
        std::sort(list.begin(), list.end());
        FLASHGMM_CUDA(cudaMemcpy(
                dense_list_.get(),
                list.data(),
                count * sizeof(uint32_t),
                cudaMemcpyHostToDevice));
    }
    return dense_list_.get();
}

} // namespace faiss_flashgmm::gpu
