#include <faiss_flashgmm/gpu/NearestRows.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <string>

#include <faiss_flashgmm/gpu/CudaBackend.h>
#include <faiss_flashgmm/gpu/DeviceMoments.h>
#include <faiss_flashgmm/gpu/DeviceRows.h>
#include <faiss_flashgmm/gpu/kernels/NearDistances.cuh>
#include <faiss_flashgmm/gpu/kernels/SparsePosterior.cuh>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/ParallelGuard.h>

namespace faiss_flashgmm {

using namespace gpu;

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

/// fp16 rows in memory of their own.
struct RoundedBuffer {
    explicit RoundedBuffer(DeviceMemory& memory)
            : half(memory), squared(memory), errors(memory) {}

    void reserve(int64_t n, int64_t d, const char* what) {
        const int64_t padded = HalfRows::padded_rows(n);
        half.reserve(padded * HalfLayout::padded(d), what);
        squared.reserve(padded, what);
        errors.reserve(padded, what);
    }
    RoundedRows rows(int64_t n, int64_t d) const {
        return {{n, HalfLayout::padded(d), half.get(), squared.get()},
                errors.get()};
    }

    DeviceBuffer<__half> half;
    DeviceBuffer<float> squared;
    DeviceBuffer<float> errors;
};

/// What the kernels of a piece of the base count.
struct Counters {
    uint32_t overflow; ///< see NearCandidates
    uint32_t near;     ///< see MeasureNear
};

} // namespace

struct NearestRows::Impl {
    Impl(const CudaOptions& options,
         int64_t n,
         int64_t d,
         RowView x,
         bool inner_product);

    void nearest(
            int64_t n,
            RowView x,
            int64_t k,
            const int64_t* self,
            float* distances,
            int64_t* ids);
    void within(
            int64_t n,
            RowView x,
            const float* radii,
            const std::function<
                    void(int64_t, std::span<const std::vector<Near>>)>& visit);

    DeviceContext context;
    const bool inner_product;
    const bool sparse; ///< on the tensor cores
    const MixedOrder order;
    DeviceRows rows{context};

    SourceRows base;
    NearBounds bounds;
    RowExtent extent = {};

   private:
    template <class T>
    using Device = DeviceBuffer<T>;

    /// Rounds rows, and clears what is counted of them.
    RoundedRows round(const SourceRows& x);
    template <class T>
    void copy(T* to, const T* from, int64_t size) {
        FLASHGMM_CUDA(cudaMemcpyAsync(
                to,
                from,
                size * sizeof(T),
                cudaMemcpyDefault,
                context.compute));
    }
    void clear_counters();
    Counters read_counters();

    /// Calls work(block, first row) for all rows, in blocks that fit if a row
    /// takes so many bytes beside what its rounding takes.
    template <class Reserve, class Work>
    void for_blocks(
            int64_t n,
            RowView x,
            int64_t row_bytes,
            Reserve&& reserve,
            Work&& work);

    NearPairs pairs(const SourceRows& x) const;
    /// Lists places [begin, begin + count) of the base; false if some row has
    /// more candidates than there is room for.
    bool find_candidates(
            const RoundedRows& rounded,
            int64_t begin,
            int64_t count,
            uint32_t capacity,
            Counters& counters);

    Device<std::byte> base_x_{context.memory};
    RoundedBuffer base_rounded_{context.memory};
    Device<float> starts_{context.memory};
    Device<float> radii_{context.memory};

    RoundedBuffer rounded_{context.memory};
    Device<float> least_{context.memory};
    Device<uint32_t> counts_{context.memory};
    Device<uint32_t> places_{context.memory};
    Device<RowExtent> extents_{context.memory}; ///< of a block, of the base
    Device<Counters> counters_{context.memory};
    PinnedBuffer<Counters> host_counters_;

    Device<uint64_t> best_{context.memory};
    Device<int64_t> self_{context.memory};
    Device<float> distances_{context.memory};
    Device<int64_t> ids_{context.memory};

    Device<NearRow> near_{context.memory};
    Device<uint32_t> near_begins_{context.memory};
    Device<uint32_t> near_counts_{context.memory};
};

NearestRows::Impl::Impl(
        const CudaOptions& options,
        int64_t n,
        int64_t d,
        RowView x,
        bool inner_product)
        : context(options.devices[0], options),
          inner_product(inner_product),
          sparse(options.precision != CudaPrecision::reference &&
                 best_matrix_unit() != MatrixUnit::none),
          order(mixed_order(n)) {
    rows.set_dimension(d);
    base.n = n;
    base.d = d;
    base.x = x.data;
    base.type = x.type;
    cudaPointerAttributes attributes{};
    FLASHGMM_CUDA(cudaPointerGetAttributes(&attributes, x.data));
    const bool in_place = attributes.type == cudaMemoryTypeManaged ||
            (attributes.type == cudaMemoryTypeDevice &&
             attributes.device == context.device);
    if (!in_place) {
        const int64_t bytes = n * d * size_of(x.type);
        base_x_.reserve(bytes, "the base rows");
        base.x = base_x_.get();
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
    resident.rows = base;
    const std::string wrong = DeviceMoments(context).add(0, resident, sums);
    FLASHGMM_THROW_IF_NOT_FMT(wrong.empty(), "%s", wrong.c_str());
    const std::vector<double> mean = sums.mean();
    double variance = sums.variance();
    if (inner_product) {
        for (const double m : mean) {
            variance += m * m / double(d);
        }
    }
    rows.set_conditioning(
            Conditioning::from_moments(mean, variance, !inner_product));
    rows.give_conditioning(base);
    bounds = NearBounds::of(base, inner_product);
    if (sparse) {
        base_rounded_.reserve(n, d, "the fp16 base rows");
        starts_.reserve(HalfRows::padded_rows(n), "the base's norms");
        RoundRows round;
        round.rows = base;
        round.order = order;
        round.out = base_rounded_.rows(n, d);
        round.extent = extents_.get() + 1;
        FLASHGMM_CUDA(cudaMemsetAsync(
                round.extent, 0, sizeof(RowExtent), context.compute));
        round.launch(context.compute);
        copy(&extent, round.extent, 1);
        context.compute.synchronize();
    }
}

RoundedRows NearestRows::Impl::round(const SourceRows& x) {
    const RoundedRows rounded = rounded_.rows(x.n, x.d);
    RoundRows round;
    round.rows = x;
    round.out = rounded;
    round.extent = extents_.get();
    FLASHGMM_CUDA(cudaMemsetAsync(
            round.extent, 0, sizeof(RowExtent), context.compute));
    round.launch(context.compute);
    start_rows(rounded, bounds, least_.get(), context.compute);
    return rounded;
}

void NearestRows::Impl::clear_counters() {
    FLASHGMM_CUDA(cudaMemsetAsync(
            counters_.get(), 0, sizeof(Counters), context.compute));
}

Counters NearestRows::Impl::read_counters() {
    FLASHGMM_CUDA(cudaMemcpyAsync(
            host_counters_.get(),
            counters_.get(),
            sizeof(Counters),
            cudaMemcpyDeviceToHost,
            context.compute));
    context.compute.synchronize();
    return *host_counters_.get();
}

template <class Reserve, class Work>
void NearestRows::Impl::for_blocks(
        int64_t n,
        RowView x,
        int64_t row_bytes,
        Reserve&& reserve,
        Work&& work) {
    const int64_t d = base.d;
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
    rows.for_each({n, x}, block, false, work_on);
}

NearPairs NearestRows::Impl::pairs(const SourceRows& x) const {
    return {x, base, order, inner_product, {}};
}

bool NearestRows::Impl::find_candidates(
        const RoundedRows& rounded,
        int64_t begin,
        int64_t count,
        uint32_t capacity,
        Counters& counters) {
    FLASHGMM_CUDA(cudaMemsetAsync(
            counts_.get(),
            0,
            rounded.half.n * sizeof(uint32_t),
            context.compute));
    clear_counters();
    NearCandidates candidates;
    candidates.rows = rounded;
    candidates.least = least_.get();
    candidates.base = base_rounded_.rows(base.n, base.d);
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

void NearestRows::Impl::nearest(
        int64_t n,
        RowView x,
        int64_t k,
        const int64_t* self,
        float* distances,
        int64_t* ids) {
    const int64_t capacity = SelectNearest::capacity(k);
    const auto reserve = [&](int64_t rows) {
        places_.reserve(sparse ? rows * capacity : 0, "the candidates");
        best_.reserve(rows * k, "the neighbors");
        self_.reserve(self ? rows : 0, "the neighbors");
        distances_.reserve(distances ? rows * k : 0, "the neighbors");
        ids_.reserve(ids ? rows * k : 0, "the neighbors");
    };
    // Places that all rows are compared with: enough for k neighbors.
    const int64_t step = capacity / kTile * kTile;
    const int64_t first = !sparse
            ? base.n
            : std::min(
                      {round_up(std::max(kFirstPlaces, 2 * k), kTile),
                       step,
                       base.n});
    if (sparse) {
        StartProducts start;
        start.base = base_rounded_.rows(base.n, base.d);
        start.bounds = bounds;
        start.order = order;
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
        if (sparse) {
            select.rounded = round(block);
            select.least = least_.get();
            select.bounds = bounds;
            select.base_extent = extent;
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
        for (int64_t begin = first; begin < base.n;) {
            const int64_t count = std::min(piece, base.n - begin);
            Counters counters;
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

void NearestRows::Impl::within(
        int64_t n,
        RowView x,
        const float* radii,
        const std::function<void(int64_t, std::span<const std::vector<Near>>)>&
                visit) {
    constexpr uint32_t kCandidates = MeasureNear::kCandidates;
    radii_.reserve(base.n, "the radii");
    copy(radii_.get(), radii, base.n);
    const auto reserve = [&](int64_t rows) {
        places_.reserve(sparse ? rows * kCandidates : 0, "the candidates");
        near_.reserve(rows * kNearOfRow, "the near rows");
        near_begins_.reserve(rows, "the near rows");
        near_counts_.reserve(rows, "the near rows");
    };
    int64_t piece = sparse ? round_up(base.n, kTile) : kCandidates;
    std::vector<NearRow> found;
    std::vector<uint32_t> begins, counts;
    std::vector<std::vector<Near>> near;
    const auto work = [&](const SourceRows& block, int64_t at) {
        RoundedRows rounded;
        if (sparse) {
            rounded = round(block);
            StartProducts start;
            start.base = base_rounded_.rows(base.n, base.d);
            start.bounds = bounds;
            start.order = order;
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
        if (sparse) {
            candidates.counts = counts_.get();
            candidates.places = places_.get();
        }
        near.assign(block.n, {});
        begins.resize(block.n);
        counts.resize(block.n);
        for (int64_t begin = 0; begin < base.n;) {
            const int64_t count = std::min(piece, base.n - begin);
            Counters counters;
            if (sparse &&
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
                    if (begin + count == base.n) {
                        std::ranges::sort(near[i], {}, &Near::base);
                    }
                });
            }
            guard.rethrow();
            begin += count;
            if (sparse) {
                piece = std::min(2 * piece, round_up(base.n, kTile));
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

NearestRows::NearestRows(
        const CudaOptions& options,
        int64_t n,
        int64_t d,
        RowView base,
        bool inner_product) {
    FLASHGMM_THROW_IF_NOT_FMT(
            options.devices.size() == 1,
            "neighbors are looked for on one CUDA device, %zu are given",
            options.devices.size());
    const std::string why = CudaBackend::why_unavailable(options.devices[0]);
    FLASHGMM_THROW_IF_NOT_FMT(why.empty(), "%s", why.c_str());
    FLASHGMM_THROW_IF_NOT_FMT(
            options.memory_limit >= 0,
            "memory_limit = %lld bytes",
            static_cast<long long>(options.memory_limit));
    FLASHGMM_THROW_IF_NOT_FMT(
            n >= 1 && n <= kMostRows,
            "a base of %lld rows, must be 1 to %lld",
            static_cast<long long>(n),
            static_cast<long long>(kMostRows));
    FLASHGMM_THROW_IF_NOT_FMT(
            d >= 1, "d = %lld must be at least 1", static_cast<long long>(d));
    const DeviceScope scope(options.devices[0]);
    impl_ = std::make_unique<Impl>(options, n, d, base, inner_product);
}

NearestRows::~NearestRows() = default;

void NearestRows::nearest(
        int64_t n,
        RowView x,
        int64_t k,
        const int64_t* self,
        float* distances,
        int64_t* ids) {
    FLASHGMM_THROW_IF_NOT_FMT(
            k >= 1 && k <= kMostNeighbors,
            "%lld neighbors, must be 1 to %lld",
            static_cast<long long>(k),
            static_cast<long long>(kMostNeighbors));
    FLASHGMM_THROW_IF_NOT_FMT(
            n >= 0, "n = %lld rows", static_cast<long long>(n));
    if (n > 0) {
        const DeviceScope scope(impl_->context.device);
        impl_->nearest(n, x, k, self, distances, ids);
    }
}

void NearestRows::within(
        int64_t n,
        RowView x,
        const float* radii,
        const std::function<void(int64_t, std::span<const std::vector<Near>>)>&
                visit) {
    FLASHGMM_THROW_IF_NOT_FMT(
            n >= 0, "n = %lld rows", static_cast<long long>(n));
    if (n > 0) {
        const DeviceScope scope(impl_->context.device);
        impl_->within(n, x, radii, visit);
    }
}

int64_t NearestRows::peak_device_bytes() const {
    return impl_->context.memory.peak();
}

} // namespace faiss_flashgmm
