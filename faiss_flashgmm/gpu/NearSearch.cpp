#include <faiss_flashgmm/gpu/NearSearch.h>

#include <algorithm>
#include <numeric>
#include <string>

#include <faiss_flashgmm/gpu/DeviceMoments.h>
#include <faiss_flashgmm/gpu/kernels/SparsePosterior.cuh>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/ParallelGuard.h>

namespace faiss_flashgmm::gpu {

namespace {

/// Rows of the largest block.
constexpr int64_t kBlockRows = 32768;
/// Base rows near a row that there is room for, on average; those of a row may
/// be many more.
constexpr int64_t kNearOfRow = 512;
/// Of the base, that all rows are compared with first: so many, or twice the
/// neighbors.
constexpr int64_t kFirstPlaces = 512;

constexpr int64_t kTile = NearCandidates::kTile;

/// After a piece of the base of which some row wants more than there is room
/// for: a smaller one, with some to spare.
int64_t smaller_piece(int64_t count, uint32_t wanted, uint32_t capacity) {
    const int64_t fitting =
            int64_t(double(count) * capacity / wanted * 0.75) / kTile * kTile;
    return std::max(std::min(fitting, count / 2 / kTile * kTile), kTile);
}

int64_t round_up(int64_t a, int64_t b) {
    return (a + b - 1) / b * b;
}

/// About the golden section of n: neighbors in the base come apart.
MixedOrder mixed_order(int64_t n) {
    MixedOrder order;
    order.n = uint32_t(n);
    order.step = std::max<uint32_t>(1, uint32_t(double(n) * 0.6180339887));
    while (std::gcd(order.step, order.n) != 1) {
        ++order.step;
    }
    return order;
}

} // namespace

NearSearch::NearSearch(
        const CudaOptions& options,
        int64_t n,
        int64_t d,
        RowView x,
        bool inner_product)
        : context(options.devices[0], options),
          inner_product_(inner_product),
          sparse_(options.precision != CudaPrecision::reference &&
                  best_matrix_unit() != MatrixUnit::none),
          order_(mixed_order(n)) {
    rows_.set_dimension(d);
    base_.n = n;
    base_.d = d;
    base_.x = x.data;
    base_.type = x.type;
    cudaPointerAttributes attributes{};
    FLASHGMM_CUDA(cudaPointerGetAttributes(&attributes, x.data));
    const bool in_place = attributes.type == cudaMemoryTypeManaged ||
            (attributes.type == cudaMemoryTypeDevice &&
             attributes.device == context.device);
    if (!in_place) {
        const int64_t bytes = n * d * size_of(x.type);
        base_x_.reserve(bytes, "the base rows");
        base_.x = base_x_.get();
        if (attributes.type == cudaMemoryTypeUnregistered) {
            context.staged.start(base_x_.get(), x.data, size_t(bytes));
            context.staged.finish();
        } else {
            FLASHGMM_CUDA(cudaMemcpyAsync(
                    base_x_.get(),
                    x.data,
                    size_t(bytes),
                    cudaMemcpyDefault,
                    context.copying));
        }
        context.copying.synchronize();
    }
    counters_.reserve(1, "the counters");
    host_counters_.reserve(1, "the counters");
    extents_.reserve(2, "the extent of the rows");

    RowMoments sums(std::vector<double>(d, 0.0));
    ResidentRows resident(context.memory);
    resident.rows = base_;
    const std::string wrong = DeviceMoments(context).add(0, resident, sums);
    FLASHGMM_THROW_IF_NOT_FMT(wrong.empty(), "%s", wrong.c_str());
    const std::vector<double> mean = sums.mean();
    double variance = sums.variance();
    if (inner_product) {
        for (const double m : mean) {
            variance += m * m / double(d);
        }
    }
    rows_.set_conditioning(
            Conditioning::from_moments(mean, variance, !inner_product));
    rows_.give_conditioning(base_);
    bounds_ = NearBounds::of(base_, inner_product);
    if (sparse_) {
        base_rounded_.reserve(n, d, "the fp16 base rows");
        starts_.reserve(HalfRows::padded_rows(n), "the base's norms");
        RoundRows round;
        round.rows = base_;
        round.order = order_;
        round.out = base_rounded_.rows(n, d);
        round.extent = extents_.get() + 1;
        FLASHGMM_CUDA(cudaMemsetAsync(
                round.extent, 0, sizeof(RowExtent), context.compute));
        round.launch(context.compute);
        copy(&extent_, round.extent, 1);
        context.compute.synchronize();
    }
}

RoundedRows NearSearch::round(const SourceRows& x) {
    const RoundedRows rounded = rounded_.rows(x.n, x.d);
    RoundRows round;
    round.rows = x;
    round.out = rounded;
    round.extent = extents_.get();
    FLASHGMM_CUDA(cudaMemsetAsync(
            round.extent, 0, sizeof(RowExtent), context.compute));
    round.launch(context.compute);
    start_rows(rounded, bounds_, least_.get(), context.compute);
    return rounded;
}

void NearSearch::clear_counters() {
    FLASHGMM_CUDA(cudaMemsetAsync(
            counters_.get(), 0, sizeof(NearCounters), context.compute));
}

NearCounters NearSearch::read_counters() {
    FLASHGMM_CUDA(cudaMemcpyAsync(
            host_counters_.get(),
            counters_.get(),
            sizeof(NearCounters),
            cudaMemcpyDeviceToHost,
            context.compute));
    context.compute.synchronize();
    return *host_counters_.get();
}

template <class Reserve, class Work>
void NearSearch::for_blocks(
        int64_t n,
        RowView x,
        int64_t row_bytes,
        Reserve&& reserve,
        Work&& work) {
    const int64_t d = base_.d;
    constexpr int64_t kLeast = HalfRows::kPadding;
    row_bytes += 2 * HalfLayout::padded(d) + 16;
    // What is there already counts as free; a quarter is left to the rows.
    const int64_t held =
            int64_t(rounded_.half.bytes() + places_.bytes() + best_.bytes() +
                    near_.bytes() + distances_.bytes() + ids_.bytes());
    const int64_t fit = (context.memory.available() + held) / 4 * 3 / row_bytes;
    int64_t block = std::clamp(
            std::min(kBlockRows, fit) / kLeast * kLeast, kLeast, kBlockRows);
    block = std::min(block, HalfRows::padded_rows(n));
    rounded_.reserve(block, d, "the fp16 rows");
    least_.reserve(block, "the bounds of the rows");
    counts_.reserve(block, "the candidates");
    reserve(block);
    const auto work_on = [&](const ResidentRows& r, int64_t at) {
        work(r.rows, at);
    };
    rows_.for_each({n, x}, block, false, work_on);
}

NearPairs NearSearch::pairs(const SourceRows& x) const {
    return {x, base_, order_, inner_product_, {}};
}

bool NearSearch::find_candidates(
        const RoundedRows& rounded,
        int64_t begin,
        int64_t count,
        uint32_t capacity,
        NearCounters& counters) {
    FLASHGMM_CUDA(cudaMemsetAsync(
            counts_.get(),
            0,
            rounded.half.n * sizeof(uint32_t),
            context.compute));
    clear_counters();
    NearCandidates candidates;
    candidates.rows = rounded;
    candidates.least = least_.get();
    candidates.base = base_rounded_.rows(base_.n, base_.d);
    candidates.starts = starts_.get();
    candidates.begin = begin;
    candidates.count = count;
    candidates.capacity = capacity;
    candidates.counts = counts_.get();
    candidates.places = places_.get();
    candidates.overflow = &counters_.get()->overflow;
    candidates.launch(context.compute);
    counters = read_counters();
    return counters.overflow == 0;
}

void NearSearch::nearest(
        int64_t n,
        RowView x,
        int64_t k,
        const int64_t* self,
        float* distances,
        int64_t* ids) {
    const int64_t capacity = SelectNearest::capacity(k);
    const auto reserve = [&](int64_t rows) {
        places_.reserve(sparse_ ? rows * capacity : 0, "the candidates");
        best_.reserve(rows * k, "the neighbors");
        self_.reserve(self ? rows : 0, "the neighbors");
        distances_.reserve(distances ? rows * k : 0, "the neighbors");
        ids_.reserve(ids ? rows * k : 0, "the neighbors");
    };
    // Places that all rows are compared with: enough for k neighbors.
    const int64_t step = capacity / kTile * kTile;
    const int64_t first = !sparse_
            ? base_.n
            : std::min(
                      {round_up(std::max(kFirstPlaces, 2 * k), kTile),
                       step,
                       base_.n});
    if (sparse_) {
        StartProducts start;
        start.base = base_rounded_.rows(base_.n, base_.d);
        start.bounds = bounds_;
        start.order = order_;
        start.starts = starts_.get();
        start.launch(context.compute);
    }
    const auto work = [&](const SourceRows& block, int64_t at) {
        SelectNearest select;
        select.pairs = pairs(block);
        select.k = k;
        select.best = best_.get();
        FLASHGMM_CUDA(cudaMemsetAsync(
                best_.get(),
                0,
                block.n * k * sizeof(uint64_t),
                context.compute));
        if (self) {
            copy(self_.get(), self + at, block.n);
            select.self = self_.get();
        }
        if (sparse_) {
            select.rounded = round(block);
            select.least = least_.get();
            select.bounds = bounds_;
            select.base_extent = extent_;
        }
        CandidatePlaces& candidates = select.pairs.candidates;
        candidates.capacity = uint32_t(capacity);
        for (int64_t begin = 0; begin < first; begin += step) {
            candidates.begin = uint32_t(begin);
            candidates.count = uint32_t(std::min(step, first - begin));
            select.launch(context.compute);
        }
        candidates.counts = counts_.get();
        candidates.places = places_.get();
        int64_t piece = first;
        for (int64_t begin = first; begin < base_.n;) {
            const int64_t count = std::min(piece, base_.n - begin);
            NearCounters counters;
            if (!find_candidates(
                        select.rounded,
                        begin,
                        count,
                        candidates.capacity,
                        counters)) {
                piece = smaller_piece(
                        count, counters.overflow, candidates.capacity);
                continue;
            }
            select.launch(context.compute);
            begin += count;
            // As many again as were seen: about k of them are nearer.
            piece = std::min(2 * piece, begin);
        }
        UnpackNearest unpack;
        unpack.size = block.n * k;
        unpack.best = best_.get();
        unpack.distances = distances ? distances_.get() : nullptr;
        unpack.ids = ids ? ids_.get() : nullptr;
        unpack.launch(context.compute);
        if (distances) {
            copy(distances + at * k, distances_.get(), block.n * k);
        }
        if (ids) {
            copy(ids + at * k, ids_.get(), block.n * k);
        }
        context.compute.synchronize();
    };
    for_blocks(n, x, capacity * 4 + k * 20 + 12, reserve, work);
}

void NearSearch::within(
        int64_t n,
        RowView x,
        const float* radii,
        const std::function<void(int64_t, std::span<const std::vector<Near>>)>&
                visit) {
    constexpr uint32_t kCandidates = MeasureNear::kCandidates;
    radii_.reserve(base_.n, "the radii");
    copy(radii_.get(), radii, base_.n);
    const auto reserve = [&](int64_t rows) {
        places_.reserve(sparse_ ? rows * kCandidates : 0, "the candidates");
        near_.reserve(rows * kNearOfRow, "the near rows");
        near_begins_.reserve(rows, "the near rows");
        near_counts_.reserve(rows, "the near rows");
    };
    int64_t piece = sparse_ ? round_up(base_.n, kTile) : kCandidates;
    std::vector<NearRow> found;
    std::vector<uint32_t> begins, counts;
    std::vector<std::vector<Near>> near;
    const auto work = [&](const SourceRows& block, int64_t at) {
        RoundedRows rounded;
        if (sparse_) {
            rounded = round(block);
            StartProducts start;
            start.base = base_rounded_.rows(base_.n, base_.d);
            start.bounds = bounds_;
            start.order = order_;
            start.radii = radii_.get();
            start.rows = extents_.get();
            start.starts = starts_.get();
            start.launch(context.compute);
        }
        MeasureNear measure;
        measure.pairs = pairs(block);
        measure.radii = radii_.get();
        measure.capacity = uint32_t(near_.size());
        measure.near = near_.get();
        measure.begins = near_begins_.get();
        measure.counts = near_counts_.get();
        measure.total = &counters_.get()->near;
        CandidatePlaces& candidates = measure.pairs.candidates;
        candidates.capacity = kCandidates;
        if (sparse_) {
            candidates.counts = counts_.get();
            candidates.places = places_.get();
        }
        near.assign(block.n, {});
        begins.resize(block.n);
        counts.resize(block.n);
        for (int64_t begin = 0; begin < base_.n;) {
            const int64_t count = std::min(piece, base_.n - begin);
            NearCounters counters;
            if (sparse_ &&
                !find_candidates(
                        rounded, begin, count, kCandidates, counters)) {
                piece = smaller_piece(count, counters.overflow, kCandidates);
                continue;
            }
            clear_counters();
            candidates.begin = uint32_t(begin);
            candidates.count = uint32_t(count);
            measure.launch(context.compute);
            counters = read_counters();
            if (counters.near > measure.capacity) {
                piece = smaller_piece(count, counters.near, measure.capacity);
                continue;
            }
            found.resize(counters.near);
            copy(found.data(), near_.get(), counters.near);
            copy(begins.data(), near_begins_.get(), block.n);
            copy(counts.data(), near_counts_.get(), block.n);
            context.compute.synchronize();
            ParallelGuard guard;
#pragma omp parallel for
            for (int64_t i = 0; i < block.n; ++i) {
                guard.run([&] {
                    for (uint32_t j = 0; j < counts[i]; ++j) {
                        const NearRow& row = found[begins[i] + j];
                        near[i].push_back({row.base, row.distance});
                    }
                    if (begin + count == base_.n) {
                        std::ranges::sort(near[i], {}, &Near::base);
                    }
                });
            }
            guard.rethrow();
            begin += count;
            if (sparse_) {
                piece = std::min(2 * piece, round_up(base_.n, kTile));
            }
        }
        visit(at, near);
    };
    for_blocks(
            n,
            x,
            int64_t(kCandidates) * 4 + kNearOfRow * sizeof(NearRow) + 12,
            reserve,
            work);
}

} // namespace faiss_flashgmm::gpu
