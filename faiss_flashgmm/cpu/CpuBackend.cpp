#include <faiss_flashgmm/cpu/CpuBackend.h>

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numbers>
#include <vector>

#include <faiss_flashgmm/cpu/BlasThreadScope.h>
#include <faiss_flashgmm/cpu/RowScanner.h>
#include <faiss_flashgmm/cpu/row_kernels.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/ParallelGuard.h>
#include <faiss_flashgmm/utils/memory.h>

namespace faiss_flashgmm {

namespace {

// A block is what is held between the two passes: so many rows at most, so
// many of their coordinates, and about so many of their pairs.
constexpr int64_t kBlockRows = 16384;
constexpr int64_t kBlockFloats = int64_t(1) << 23;
constexpr int64_t kBlockPairs = int64_t(1) << 22;

/// Operations of a chunk: a fraction of a second on two cores.
constexpr double kChunkOperations = 2e10;

using S = SufficientStats;

/// A row and a component that share responsibility.
struct Pair {
    uint32_t row; ///< in the block
    uint32_t component;
    float distance;
    double mass; ///< w r
};

/// What a row adds to the sums that are not per component.
struct RowSums {
    double weight;
    double log_z; ///< natural log, conditioned units
    double objective;
    double dropped;
};

/// Rows of a tile such that all threads have work.
int64_t tile_rows(int64_t n, int threads) {
    const int64_t share = (n + threads - 1) / threads;
    return std::clamp<int64_t>((share + 7) / 8 * 8, 8, RowScanner::kTileRows);
}

} // namespace

struct CpuBackend::Impl {
    LogitTables tables;
    Conditioning conditioning;
    SufficientStats stats;

    /// Rows of the next block, from the pairs a row of the last one. Changes
    /// no result.
    int64_t block_rows = 0;

    // Of the block at hand.
    std::vector<float> rows; ///< conditioned
    std::vector<RowSums> row_sums;
    std::vector<std::vector<Pair>> tile_pairs;
    // The pairs again, grouped by component, in row order.
    std::vector<uint32_t> offsets;
    std::vector<uint32_t> pair_rows;
    std::vector<double> pair_masses;
    std::vector<float> pair_distances;

    std::vector<std::unique_ptr<RowScanner>> scanners; ///< one a thread

    void prepare_scanners(int threads);
    void condition(int64_t n, const float* x, float* out) const;
    void size_block(double pairs_per_row);
    void accumulate_block(int64_t n, const float* x, const float* weights);
    int64_t group_pairs(int64_t tiles, int threads);
};

CpuBackend::CpuBackend() : impl_(std::make_unique<Impl>()) {}
CpuBackend::~CpuBackend() = default;

int64_t CpuBackend::preferred_chunk(int64_t k, int64_t d) const {
    const double rows = kChunkOperations / (2.0 * double(k) * double(d));
    return std::clamp<int64_t>(int64_t(rows), 256, 4 * kBlockRows);
}

void CpuBackend::begin(
        const Mixture& mixture,
        const Conditioning& conditioning) {
    FLASHGMM_THROW_IF_NOT_FMT(
            mixture.k <= std::numeric_limits<int32_t>::max() &&
                    mixture.d <= std::numeric_limits<int32_t>::max(),
            "k = %ld, d = %ld: the CPU backend takes up to 2^31 - 1 of each",
            long(mixture.k),
            long(mixture.d));
    Impl& impl = *impl_;
    impl.tables.reset(mixture);
    impl.conditioning = conditioning;
    if (impl.stats.k() != mixture.k || impl.stats.d() != mixture.d) {
        impl.stats = SufficientStats(mixture.k, mixture.d);
        impl.scanners.clear(); // their buffers depend on k
    } else {
        impl.stats.clear();
    }
    impl.size_block(double(mixture.k)); // until the first block tells
}

/// Conditioning::apply at vector speed, with the same result.
void CpuBackend::Impl::condition(int64_t n, const float* x, float* out) const {
    const int64_t d = tables.mixture.d;
    for (int64_t i = 0; i < n; i++) {
        row_kernels::condition(
                d,
                x + i * d,
                conditioning.shift.data(),
                1 / conditioning.scale,
                out + i * d);
    }
}

void CpuBackend::Impl::size_block(double pairs_per_row) {
    const int64_t by_pairs =
            int64_t(double(kBlockPairs) / std::max(1.0, pairs_per_row));
    const int64_t by_floats = kBlockFloats / tables.mixture.d;
    block_rows = std::clamp<int64_t>(
            std::min(by_pairs, by_floats), RowScanner::kTileRows, kBlockRows);
}

void CpuBackend::Impl::prepare_scanners(int threads) {
    while (int(scanners.size()) < threads) {
        scanners.push_back(std::make_unique<RowScanner>(tables));
    }
}

void CpuBackend::add_rows(const Rows& rows) {
    const BlasThreadScope blas_threads;
    const int64_t d = impl_->tables.mixture.d;
    const auto add = [&](int64_t first, int64_t n, const float* x) {
        const float* weights = rows.weights ? rows.weights + first : nullptr;
        for (int64_t begin = 0; begin < n;) {
            const int64_t count = std::min(impl_->block_rows, n - begin);
            impl_->accumulate_block(
                    count, x + begin * d, weights ? weights + begin : nullptr);
            begin += count;
        }
    };
    for_float_blocks(rows.n, d, rows.x, add);
}

SufficientStats& CpuBackend::finish() {
    return impl_->stats;
}

void CpuBackend::Impl::accumulate_block(
        int64_t n,
        const float* x,
        const float* weights) {
    const int64_t k = tables.mixture.k;
    const int64_t d = tables.mixture.d;
    const int threads = omp_get_max_threads();
    const int64_t tile = tile_rows(n, threads);
    const int64_t tiles = (n + tile - 1) / tile;
    prepare_scanners(threads);
    resize_or_throw(rows, uint64_t(n) * d, "a block of rows");
    row_sums.resize(n);
    if (int64_t(tile_pairs.size()) < tiles) {
        tile_pairs.resize(tiles);
    }

    ParallelGuard guard;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t t = 0; t < tiles; t++) {
        guard.run([&] {
            const int64_t first = t * tile;
            const int64_t count = std::min(tile, n - first);
            RowScanner& scanner = *scanners[omp_get_thread_num()];
            std::vector<Pair>& pairs = tile_pairs[t];
            pairs.clear();
            condition(count, x + first * d, rows.data() + first * d);
            scanner.scan(count, rows.data() + first * d, 1);
            std::vector<float> logits;
            std::vector<float> shares;
            for (int64_t i = 0; i < count; i++) {
                const RowCandidates& row = scanner.row(i);
                const auto& candidates = row.candidates;
                const double w = weights ? weights[first + i] : 1;
                const size_t size = candidates.size();
                if (w == 0 || size == 0) {
                    row_sums[first + i] = {};
                    continue;
                }
                logits.resize(size);
                shares.resize(size);
                float best_distance = 0;
                for (size_t c = 0; c < size; c++) {
                    logits[c] = float(candidates[c].logit - row.best);
                    if (candidates[c].logit == row.best) {
                        best_distance = candidates[c].distance;
                    }
                }
                const double total = row_kernels::exp2_below(
                        size, logits.data(), shares.data());
                for (size_t c = 0; c < size; c++) {
                    pairs.push_back(
                            {uint32_t(first + i),
                             candidates[c].component,
                             candidates[c].distance,
                             w * (shares[c] / total)});
                }
                row_sums[first + i] = {
                        w,
                        w * (row.best + std::log2(total)) * std::numbers::ln2,
                        w * best_distance,
                        w * row.missed / (total + row.missed)};
            }
        });
    }
    guard.rethrow();

    for (int64_t i = 0; i < n; i++) {
        stats.scalar(S::kWeight) += row_sums[i].weight;
        stats.scalar(S::kLogLikelihood) += row_sums[i].log_z;
        stats.scalar(S::kObjective) += row_sums[i].objective;
        stats.scalar(S::kDroppedMass) += row_sums[i].dropped;
    }
    stats.scalar(S::kRows) += double(n);
    const int64_t pairs = group_pairs(tiles, threads);
    stats.scalar(S::kPairs) += double(pairs);
    size_block(double(pairs) / double(n));

    // Each component sums its rows in their order, whoever does it: the
    // result does not depend on threads or blocks.
#pragma omp parallel for schedule(dynamic, 16) num_threads(threads)
    for (int64_t c = 0; c < k; c++) {
        const uint32_t begin = offsets[c];
        const uint32_t end = offsets[c + 1];
        double count = stats.counts()[c];
        double squared = stats.squared()[c];
        for (uint32_t i = begin; i < end; i++) {
            count += pair_masses[i];
            squared += pair_masses[i] * pair_distances[i];
        }
        stats.counts()[c] = count;
        stats.squared()[c] = squared;
        row_kernels::add_weighted_rows(
                d,
                rows.data(),
                end - begin,
                pair_rows.data() + begin,
                pair_masses.data() + begin,
                stats.sums().data() + c * d);
    }
}

/// Stable counting sort of the block's pairs by component. Fills offsets
/// (k + 1) and pair_*; returns the number of pairs.
int64_t CpuBackend::Impl::group_pairs(int64_t tiles, int threads) {
    const int64_t k = tables.mixture.k;
    const int64_t parts = std::min<int64_t>(threads, tiles);
    const auto first_tile = [&](int64_t part) { return tiles * part / parts; };
    // cursors[part * k + c]: where part puts its next pair of component c
    std::vector<uint32_t> cursors(parts * k, 0);
#pragma omp parallel for num_threads(threads)
    for (int64_t part = 0; part < parts; part++) {
        for (int64_t t = first_tile(part); t < first_tile(part + 1); t++) {
            for (const Pair& pair : tile_pairs[t]) {
                cursors[part * k + pair.component]++;
            }
        }
    }
    offsets.resize(k + 1);
    uint64_t total = 0;
    for (int64_t c = 0; c < k; c++) {
        offsets[c] = uint32_t(total);
        for (int64_t part = 0; part < parts; part++) {
            const uint32_t count = cursors[part * k + c];
            cursors[part * k + c] = uint32_t(total);
            total += count;
        }
    }
    offsets[k] = uint32_t(total);
    resize_or_throw(pair_rows, total, "the pairs of a block");
    resize_or_throw(pair_masses, total, "the pairs of a block");
    resize_or_throw(pair_distances, total, "the pairs of a block");
#pragma omp parallel for num_threads(threads)
    for (int64_t part = 0; part < parts; part++) {
        for (int64_t t = first_tile(part); t < first_tile(part + 1); t++) {
            for (const Pair& pair : tile_pairs[t]) {
                const uint32_t at = cursors[part * k + pair.component]++;
                pair_rows[at] = pair.row;
                pair_masses[at] = pair.mass;
                pair_distances[at] = pair.distance;
            }
        }
    }
    return int64_t(total);
}

void CpuBackend::assign(
        int64_t n,
        RowView x,
        int64_t m,
        int64_t* components,
        float* log_scores,
        float* log_z) {
    Impl& impl = *impl_;
    const int64_t k = impl.tables.mixture.k;
    const int64_t d = impl.tables.mixture.d;
    FLASHGMM_THROW_IF_NOT_FMT(
            m >= 1 && m <= k,
            "m = %ld must lie in [1, k = %ld]",
            long(m),
            long(k));
    const BlasThreadScope blas_threads;
    const int threads = omp_get_max_threads();
    const int64_t tile = tile_rows(n, threads);
    const double offset = impl.conditioning.log_density_offset();
    const auto to_user = [&](double logit) {
        return float(logit * std::numbers::ln2 + offset);
    };
    impl.prepare_scanners(threads);

    ParallelGuard guard;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t first = 0; first < n; first += tile) {
        guard.run([&] {
            const int64_t count = std::min(tile, n - first);
            RowScanner& scanner = *impl.scanners[omp_get_thread_num()];
            std::vector<float> conditioned(count * d);
            to_floats(x.from(first * d), count * d, conditioned.data());
            impl.condition(count, conditioned.data(), conditioned.data());
            scanner.scan(count, conditioned.data(), m);
            std::vector<Candidate> ranked;
            for (int64_t i = 0; i < count; i++) {
                const RowCandidates& row = scanner.row(i);
                ranked = row.candidates;
                const int64_t found = std::min<int64_t>(m, ranked.size());
                std::partial_sort(
                        ranked.begin(),
                        ranked.begin() + found,
                        ranked.end(),
                        [](const Candidate& a, const Candidate& b) {
                            return a.logit > b.logit ||
                                    (a.logit == b.logit &&
                                     a.component < b.component);
                        });
                const int64_t at = (first + i) * m;
                for (int64_t j = 0; j < m; j++) {
                    components[at + j] =
                            j < found ? int64_t(ranked[j].component) : -1;
                    log_scores[at + j] = j < found
                            ? to_user(ranked[j].logit)
                            : -std::numeric_limits<float>::infinity();
                }
                if (log_z) {
                    double total = 0;
                    for (const Candidate& c : ranked) {
                        total += std::exp2(c.logit - row.best);
                    }
                    log_z[first + i] = to_user(row.best + std::log2(total));
                }
            }
        });
    }
    guard.rethrow();
}

} // namespace faiss_flashgmm
