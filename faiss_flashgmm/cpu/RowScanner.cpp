#include <faiss_flashgmm/cpu/RowScanner.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

#include <faiss_flashgmm/cpu/row_kernels.h>
#include <faiss_flashgmm/cpu/sgemm.h>
#include <faiss_flashgmm/utils/memory.h>

namespace faiss_flashgmm {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Larger squared norms or logits would overflow fp32 in the matrix product
/// and what follows.
constexpr double kLargestNorm = 1e15;
constexpr double kLargestPrecision = 1e15;

/// Leaders of a tile that are looked for one by one. A row of more leaders
/// takes more exact distances until its threshold is found.
constexpr int64_t kMostLeaders = 8;

/// The next float at or above.
float round_up(double value) {
    const float rounded = float(value);
    return double(rounded) >= value
            ? rounded
            : std::nextafter(rounded, std::numeric_limits<float>::infinity());
}

/// The next float at or below, within the range of finite numbers or -inf.
float round_down(double value) {
    return -round_up(-value);
}

} // namespace

void LogitTables::reset(const Mixture& conditioned) {
    mixture = conditioned;
    const int64_t k = mixture.k;
    const int64_t d = mixture.d;
    level.resize(k);
    precision.resize(k);
    slope.resize(k);
    intercept.resize(k);
    // An fp32 inner product is off by at most d u |x| |mu|, u = 2^-24, and
    // 2 |x| |mu| <= |x|^2 + |mu|^2; 32 covers the operations around it.
    const double slack = double(d + 32) * 0x1p-24;
    half = 0.5 * (1 - slack);
    double largest = 0;
#pragma omp parallel for reduction(max : largest)
    for (int64_t c = 0; c < k; c++) {
        const double s = mixture.variances[c];
        level[c] = std::log2(mixture.weights[c]) -
                0.5 * double(d) * std::log2(2 * std::numbers::pi * s);
        precision[c] = 0.5 * std::numbers::log2e / s;
        const double norm = row_kernels::squared_norm(d, mixture.mean(c));
        largest = std::max(
                {largest,
                 norm / kLargestNorm,
                 precision[c] / kLargestPrecision});
        slope[c] = float(2 * precision[c]);
        intercept[c] = mixture.weights[c] > 0
                ? round_up(
                          level[c] + std::abs(level[c]) * 0x1p-20 -
                          precision[c] * norm * (1 - slack))
                : -std::numeric_limits<float>::infinity();
    }
    exact_only = !(largest <= 1);
}

void RowCandidates::clear() {
    best = -kInfinity;
    missed = 0;
    candidates.clear();
    leaders.clear();
}

void RowCandidates::insert(const Candidate& candidate, int64_t m) {
    if (candidate.logit > best) {
        missed *= std::exp2(best - candidate.logit);
        best = candidate.logit;
    }
    candidates.push_back(candidate);
    if (m > 1) {
        if (int64_t(leaders.size()) < m) {
            leaders.push_back(candidate.logit);
            std::push_heap(leaders.begin(), leaders.end(), std::greater<>());
        } else if (candidate.logit > leaders.front()) {
            std::pop_heap(leaders.begin(), leaders.end(), std::greater<>());
            leaders.back() = candidate.logit;
            std::push_heap(leaders.begin(), leaders.end(), std::greater<>());
        }
    }
}

double RowCandidates::threshold(int64_t m) const {
    if (int64_t(candidates.size()) < m) {
        return -kInfinity;
    }
    const double near = best - kKeepBits;
    return m > 1 ? std::min(near, leaders.front()) : near;
}

void RowCandidates::finish(int64_t m) {
    const double cut = threshold(m);
    size_t size = 0;
    for (const Candidate& c : candidates) {
        if (c.logit < cut) {
            missed += std::exp2(c.logit - best);
            continue;
        }
        // Insertion sort: all but the leaders of each tile are in order.
        size_t at = size++;
        const Candidate kept = c;
        for (; at > 0 && candidates[at - 1].component > kept.component; at--) {
            candidates[at] = candidates[at - 1];
        }
        candidates[at] = kept;
    }
    candidates.resize(size);
}

RowScanner::RowScanner(const LogitTables& tables) : tables_(tables) {
    const int64_t tile = std::min(kTileComponents, tables.mixture.k);
    rows_.resize(kTileRows);
    norms_.resize(kTileRows);
    resize_or_throw(
            products_, uint64_t(kTileRows) * tile, "a tile of inner products");
    indices_.resize(tile);
    distances_.resize(tile);
}

void RowScanner::scan(int64_t n, const float* x, int64_t m) {
    const int64_t k = tables_.mixture.k;
    const int64_t d = tables_.mixture.d;
    bool any_product = false;
    for (int64_t i = 0; i < n; i++) {
        rows_[i].clear();
        norms_[i] = row_kernels::squared_norm(d, x + i * d);
        if (tables_.exact_only || !(norms_[i] <= kLargestNorm)) {
            scan_all(rows_[i], x + i * d, m);
            norms_[i] = kInfinity; // done
        } else {
            any_product = true;
        }
    }
    for (int64_t first = 0; any_product && first < k;
         first += kTileComponents) {
        const int64_t count = std::min(kTileComponents, k - first);
        const int rows = int(n);
        const int columns = int(count);
        const int depth = int(d);
        const float one = 1;
        const float zero = 0;
        sgemm_("T",
               "N",
               &columns,
               &rows,
               &depth,
               &one,
               tables_.mixture.mean(first),
               &depth,
               x,
               &depth,
               &zero,
               products_.data(),
               &columns);
        for (int64_t i = 0; i < n; i++) {
            if (norms_[i] < kInfinity) {
                offer_tile(
                        rows_[i],
                        x + i * d,
                        norms_[i],
                        first,
                        count,
                        products_.data() + i * count,
                        m);
            }
        }
    }
    for (int64_t i = 0; i < n; i++) {
        rows_[i].finish(m);
    }
}

void RowScanner::offer_tile(
        RowCandidates& row,
        const float* x,
        double norm,
        int64_t first,
        int64_t count,
        float* bounds,
        int64_t m) {
    float largest = row_kernels::upper_bounds(
            count,
            tables_.slope.data() + first,
            tables_.intercept.data() + first,
            float(tables_.half * norm),
            bounds);
    if (!(largest > row.threshold(m) - row_kernels::kMissedBits)) {
        return; // also if all components of the tile have weight zero
    }
    // The largest bounds come first: they raise the threshold for the others.
    const int64_t leaders = std::min({m, count, kMostLeaders});
    for (int64_t i = 0; i < leaders && largest > row.threshold(m); i++) {
        indices_[0] = uint32_t(row_kernels::index_of(count, bounds, largest));
        bounds[indices_[0]] = -std::numeric_limits<float>::infinity();
        insert_exact(row, x, first, 1, m);
        largest = row_kernels::largest(count, bounds);
    }

    float missed;
    const size_t selected = row_kernels::select_above(
            count,
            bounds,
            round_down(row.threshold(m)),
            float(row.best),
            &missed,
            indices_.data());
    row.missed += missed;
    insert_exact(row, x, first, selected, m);
}

void RowScanner::insert_exact(
        RowCandidates& row,
        const float* x,
        int64_t first,
        size_t count,
        int64_t m) {
    row_kernels::squared_distances(
            tables_.mixture.d,
            x,
            tables_.mixture.mean(first),
            count,
            indices_.data(),
            distances_.data());
    for (size_t i = 0; i < count; i++) {
        const int64_t c = first + indices_[i];
        const float distance = distances_[i];
        row.insert(
                {tables_.level[c] - tables_.precision[c] * distance,
                 distance,
                 uint32_t(c)},
                m);
    }
}

void RowScanner::scan_all(RowCandidates& row, const float* x, int64_t m) {
    const Mixture& mixture = tables_.mixture;
    for (int64_t c = 0; c < mixture.k; c++) {
        if (mixture.weights[c] == 0) {
            continue;
        }
        double distance = 0;
        for (int64_t j = 0; j < mixture.d; j++) {
            const double delta = double(x[j]) - mixture.mean(c)[j];
            distance += delta * delta;
        }
        const double logit = tables_.level[c] - tables_.precision[c] * distance;
        if (!std::isnan(logit)) {
            row.insert(
                    {logit,
                     float(std::min<double>(
                             distance, std::numeric_limits<float>::max())),
                     uint32_t(c)},
                    m);
        }
    }
}

} // namespace faiss_flashgmm
