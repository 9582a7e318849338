#include <faiss_flashgmm/Demand.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/cpu/BlasThreadScope.h>
#include <faiss_flashgmm/cpu/NearTiles.h>
#include <faiss_flashgmm/utils/ParallelGuard.h>

namespace faiss_flashgmm {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Lists of a surrogate's probing order that are kept.
constexpr idx_t kOrder = 64;
/// Rows that a thread works on at once.
constexpr idx_t kBlock = 1024;
/// Rows whose probed lists are held at once.
constexpr idx_t kProbedRows = 65536;
/// Neighbors of the first ring; each ring doubles them.
constexpr int kFirstRing = 8;

idx_t order_size(const faiss::Index& quantizer) {
    return std::min(kOrder, quantizer.ntotal);
}

/// Neighbors within each ring: 8, 16, 32, ... `neighbors`.
std::vector<int> rings(int neighbors) {
    std::vector<int> ends;
    for (int end = kFirstRing; end < neighbors; end *= 2) {
        ends.push_back(end);
    }
    ends.push_back(neighbors);
    return ends;
}

/// Weight of a vote in each ring: the mean of 1 / (1 + j / 32) over it.
std::vector<double> ring_weights(const std::vector<int>& ends) {
    std::vector<double> weights;
    int begin = 0;
    for (int end : ends) {
        double sum = 0;
        for (int j = begin; j < end; j++) {
            sum += 1 / (1 + j / 32.0);
        }
        weights.push_back(sum / (end - begin));
        begin = end;
    }
    return weights;
}

/// The centroids, and which rows are in which list.
struct Lists {
    explicit Lists(const faiss::Index& quantizer)
            : centroids(quantizer.ntotal * quantizer.d) {
        quantizer.reconstruct_n(0, quantizer.ntotal, centroids.data());
    }

    ListedRows listed(
            const faiss::Index& quantizer,
            const std::vector<float>& rows,
            const std::vector<idx_t>& begin) const {
        ListedRows listed;
        listed.d = quantizer.d;
        listed.nlist = quantizer.ntotal;
        listed.rows = rows.data();
        listed.begin = begin.data();
        listed.centroids = centroids.data();
        listed.inner_product =
                quantizer.metric_type == faiss::METRIC_INNER_PRODUCT;
        return listed;
    }

    std::vector<float> centroids;
};

/// Sorts row numbers by list; rows without one (-1) are left out.
std::vector<idx_t> sort_by_list(
        idx_t n,
        const idx_t* lists,
        idx_t stride,
        idx_t nlist,
        std::vector<idx_t>& begin) {
    begin.assign(nlist + 1, 0);
    for (idx_t i = 0; i < n; i++) {
        if (lists[i * stride] >= 0) {
            begin[lists[i * stride] + 1]++;
        }
    }
    for (idx_t list = 0; list < nlist; list++) {
        begin[list + 1] += begin[list];
    }
    std::vector<idx_t> ids(begin[nlist]);
    std::vector<idx_t> next(begin.begin(), begin.end() - 1);
    for (idx_t i = 0; i < n; i++) {
        if (lists[i * stride] >= 0) {
            ids[next[lists[i * stride]]++] = i;
        }
    }
    return ids;
}

std::vector<float> gather(
        const std::vector<idx_t>& ids,
        const float* x,
        idx_t d) {
    std::vector<float> rows(ids.size() * d);
    for (size_t i = 0; i < ids.size(); i++) {
        std::copy_n(x + ids[i] * d, d, rows.data() + i * d);
    }
    return rows;
}

/// Calls block(tiles, i0, count, probes) for blocks of rows, in parallel, with
/// the first n_probes lists of each row.
template <class Block>
void for_blocks(
        const faiss::Index& quantizer,
        const ListedRows& base,
        idx_t n,
        const float* x,
        idx_t n_probes,
        const Block& block) {
    std::vector<idx_t> probes;
    std::vector<float> distances;
    for (idx_t s0 = 0; s0 < n; s0 += kProbedRows) {
        const idx_t count = std::min(kProbedRows, n - s0);
        probes.resize(count * n_probes);
        distances.resize(count * n_probes);
        quantizer.search(
                count,
                x + s0 * base.d,
                n_probes,
                distances.data(),
                probes.data());
        BlasThreadScope one_blas_thread;
        ParallelGuard guard;
#pragma omp parallel
        {
            NearTiles tiles(base);
#pragma omp for schedule(dynamic)
            for (idx_t i0 = 0; i0 < count; i0 += kBlock) {
                guard.run([&] {
                    block(tiles,
                          s0 + i0,
                          std::min(kBlock, count - i0),
                          probes.data() + i0 * n_probes);
                });
            }
        }
        guard.rethrow();
    }
}

/// Keeps the k smallest of what it is given.
class Smallest {
   public:
    void reset(size_t k) {
        k_ = k;
        values_.clear();
        bound_ = kInfinity;
    }

    float bound() const {
        return bound_;
    }

    void push(float value) {
        values_.push_back(value);
        if (values_.size() == 2 * k_) {
            shrink();
        }
    }

    /// Sorted.
    const std::vector<float>& finish() {
        std::sort(values_.begin(), values_.end());
        values_.resize(std::min(values_.size(), k_));
        return values_;
    }

   private:
    void shrink() {
        std::nth_element(
                values_.begin(), values_.begin() + (k_ - 1), values_.end());
        values_.resize(k_);
        bound_ = values_.back();
    }

    size_t k_ = 0;
    std::vector<float> values_;
    float bound_ = kInfinity;
};

/// A surrogate that wants a row.
struct Vote {
    idx_t surrogate;
    double weight;
    idx_t place = 0; ///< in its order, of the best list that has the row
};

} // namespace

void DemandParameters::check() const {
    FAISS_THROW_IF_NOT_FMT(
            neighbors >= 1, "demand: neighbors is %d, must be >= 1", neighbors);
    FAISS_THROW_IF_NOT_FMT(
            probes >= 1, "demand: probes is %d, must be >= 1", probes);
    FAISS_THROW_IF_NOT_FMT(
            spread > 0 && std::isfinite(spread),
            "demand: spread is %g, must be finite and > 0",
            spread);
    FAISS_THROW_IF_NOT_FMT(
            exponent >= 0 && std::isfinite(exponent),
            "demand: exponent is %g, must be finite and >= 0",
            exponent);
    FAISS_THROW_IF_NOT_FMT(
            reach >= 1, "demand: reach is %d, must be >= 1", reach);
    FAISS_THROW_IF_NOT_FMT(
            surrogates >= 0,
            "demand: surrogates is %ld, must be >= 0",
            long(surrogates));
}

void Demand::learn(
        const faiss::Index& quantizer,
        const DemandParameters& parameters,
        idx_t n,
        const float* x,
        idx_t n_queries,
        const float* queries) {
    const idx_t d = quantizer.d;
    const idx_t nlist = quantizer.ntotal;
    const idx_t n_order = order_size(quantizer);
    const bool of_rows = !queries;
    const idx_t available = of_rows ? n : n_queries;
    const idx_t m = parameters.surrogates > 0
            ? std::min<idx_t>(parameters.surrogates, available)
            : available;

    std::vector<idx_t> lists(n), base_begin;
    quantizer.assign(n, x, lists.data());
    const std::vector<idx_t> base_ids =
            sort_by_list(n, lists.data(), 1, nlist, base_begin);
    const std::vector<float> base_rows = gather(base_ids, x, d);

    // Evenly spaced ones.
    std::vector<idx_t> ids(m);
    for (idx_t i = 0; i < m; i++) {
        ids[i] = i * available / m;
    }
    const std::vector<float> chosen = gather(ids, of_rows ? x : queries, d);

    const idx_t n_probes =
            std::min<idx_t>(std::max<idx_t>(parameters.reach, n_order), nlist);
    const std::vector<int> ends = rings(parameters.neighbors);
    const idx_t n_rings = ends.size();
    std::vector<float> all_radii(m * n_rings, -kInfinity);
    std::vector<idx_t> all_order(m * n_order);
    const Lists centroids(quantizer);
    for_blocks(
            quantizer,
            centroids.listed(quantizer, base_rows, base_begin),
            m,
            chosen.data(),
            n_probes,
            [&](NearTiles& tiles, idx_t i0, idx_t count, const idx_t* probes) {
                std::vector<Smallest> smallest(count);
                for (Smallest& s : smallest) {
                    s.reset(parameters.neighbors);
                }
                tiles.run(
                        count,
                        chosen.data() + i0 * d,
                        n_probes,
                        probes,
                        [&](const NearTile& tile) {
                            const float* distance = tile.distances;
                            for (idx_t i = 0; i < tile.n_rows; i++) {
                                Smallest& s = smallest[tile.rows[i]];
                                const idx_t self =
                                        of_rows ? ids[i0 + tile.rows[i]] : -1;
                                float bound = s.bound();
                                for (idx_t j = 0; j < tile.n_base; j++) {
                                    if (distance[j] < bound &&
                                        base_ids[tile.first_base + j] != self) {
                                        s.push(distance[j]);
                                        bound = s.bound();
                                    }
                                }
                                distance += tile.n_base;
                            }
                        });
                for (idx_t i = 0; i < count; i++) {
                    std::copy_n(
                            probes + i * n_probes,
                            n_order,
                            &all_order[(i0 + i) * n_order]);
                    const std::vector<float>& found = smallest[i].finish();
                    for (idx_t r = 0; r < n_rings && !found.empty(); r++) {
                        all_radii[(i0 + i) * n_rings + r] =
                                found[std::min<size_t>(ends[r], found.size()) -
                                      1];
                    }
                }
            });

    Demand learned;
    const std::vector<idx_t> sorted =
            sort_by_list(m, all_order.data(), n_order, nlist, learned.begin);
    learned.rows = gather(sorted, chosen.data(), d);
    learned.radii = gather(sorted, all_radii.data(), n_rings);
    learned.order.resize(sorted.size() * n_order);
    std::vector<double> probed(nlist, 1.0); // never zero
    for (size_t i = 0; i < sorted.size(); i++) {
        for (idx_t r = 0; r < n_order; r++) {
            const idx_t list = all_order[sorted[i] * n_order + r];
            learned.order[i * n_order + r] = int32_t(list);
            if (list >= 0 && r < parameters.probes) {
                probed[list]++;
            }
        }
    }
    double mean = 0;
    for (double count : probed) {
        mean += count / double(nlist);
    }
    for (double count : probed) {
        learned.prices.push_back(
                float(std::pow(count / mean, parameters.exponent)));
    }
    *this = std::move(learned);
}

void Demand::extra_lists(
        const faiss::Index& quantizer,
        const DemandParameters& parameters,
        idx_t n,
        const float* x,
        const idx_t* primary,
        int width,
        idx_t* extra,
        float* scores) const {
    check_sizes(quantizer, parameters);
    const idx_t nlist = quantizer.ntotal;
    const idx_t n_order = order_size(quantizer);
    const std::vector<double> weights =
            ring_weights(rings(parameters.neighbors));
    const idx_t n_rings = weights.size();
    std::vector<double> probed(n_order + 1);
    for (idx_t r = 0; r <= n_order; r++) {
        probed[r] = 1 /
                (1 +
                 std::pow(
                         double(r + 1) / parameters.probes,
                         1 / parameters.spread));
    }

    const Lists centroids(quantizer);
    for_blocks(
            quantizer,
            centroids.listed(quantizer, rows, begin),
            n,
            x,
            std::min<idx_t>(parameters.reach, nlist),
            [&](NearTiles& tiles, idx_t i0, idx_t count, const idx_t* probes) {
                std::vector<std::vector<Vote>> votes(count);
                tiles.run(
                        count,
                        x + i0 * quantizer.d,
                        std::min<idx_t>(parameters.reach, nlist),
                        probes,
                        [&](const NearTile& tile) {
                            const float* distance = tile.distances;
                            for (idx_t i = 0; i < tile.n_rows; i++) {
                                for (idx_t j = 0; j < tile.n_base; j++) {
                                    const idx_t y = tile.first_base + j;
                                    const float* radius = &radii[y * n_rings];
                                    if (!(distance[j] <= radius[n_rings - 1])) {
                                        continue;
                                    }
                                    idx_t ring = 0;
                                    while (distance[j] > radius[ring]) {
                                        ring++;
                                    }
                                    votes[tile.rows[i]].push_back(
                                            {y, weights[ring]});
                                }
                                distance += tile.n_base;
                            }
                        });

                std::vector<double> gains(nlist);
                std::vector<int32_t> touched;
                for (idx_t i = 0; i < count; i++) {
                    const idx_t row = i0 + i;
                    if (primary[row] < 0) {
                        continue;
                    }
                    for (Vote& vote : votes[i]) {
                        const int32_t* lists = &order[vote.surrogate * n_order];
                        vote.place = std::find(
                                             lists,
                                             lists + n_order,
                                             int32_t(primary[row])) -
                                lists;
                    }
                    float last = kInfinity;
                    for (int t = 0; t < width; t++) {
                        touched.clear();
                        for (const Vote& vote : votes[i]) {
                            const int32_t* lists =
                                    &order[vote.surrogate * n_order];
                            for (idx_t r = 0; r < vote.place; r++) {
                                if (lists[r] < 0) {
                                    break;
                                }
                                double& gain = gains[lists[r]];
                                if (gain == 0) {
                                    touched.push_back(lists[r]);
                                }
                                gain += vote.weight *
                                        (probed[r] - probed[vote.place]);
                            }
                        }
                        int32_t best = -1;
                        double best_score = 0;
                        for (int32_t list : touched) {
                            const double score = gains[list] / prices[list];
                            if (score > best_score ||
                                (score == best_score && list < best)) {
                                best = list;
                                best_score = score;
                            }
                            gains[list] = 0;
                        }
                        if (best < 0) {
                            break;
                        }
                        last = std::min(last, float(best_score));
                        extra[row * width + t] = best;
                        scores[row * width + t] = last;
                        for (Vote& vote : votes[i]) {
                            const int32_t* lists =
                                    &order[vote.surrogate * n_order];
                            vote.place =
                                    std::find(lists, lists + vote.place, best) -
                                    lists;
                        }
                    }
                }
            });
}

void Demand::check_sizes(
        const faiss::Index& quantizer,
        const DemandParameters& parameters) const {
    FAISS_THROW_IF_NOT_MSG(
            !empty(), "the demand has not been learned: call train()");
    const size_t nlist = quantizer.ntotal;
    FAISS_THROW_IF_NOT_FMT(
            begin.size() == nlist + 1 && prices.size() == nlist,
            "the demand is that of %zu lists, the quantizer holds %zu",
            begin.size() - 1,
            nlist);
    const size_t m = std::max<idx_t>(begin.back(), 0);
    FAISS_THROW_IF_NOT_FMT(
            rows.size() == m * quantizer.d &&
                    order.size() == m * order_size(quantizer) &&
                    radii.size() == m * rings(parameters.neighbors).size(),
            "the demand of %zu surrogates has %zu values, %zu lists and %zu "
            "radii",
            m,
            rows.size(),
            order.size(),
            radii.size());
}

void Demand::check(
        const faiss::Index& quantizer,
        const DemandParameters& parameters) const {
    check_sizes(quantizer, parameters);
    FAISS_THROW_IF_NOT_MSG(
            begin.front() == 0 && std::is_sorted(begin.begin(), begin.end()),
            "the surrogates of the demand are not in the order of their lists");
    for (int32_t list : order) {
        FAISS_THROW_IF_NOT_FMT(
                list >= -1 && list < quantizer.ntotal,
                "list %d of a surrogate, there are %ld",
                int(list),
                long(quantizer.ntotal));
    }
    for (float price : prices) {
        FAISS_THROW_IF_NOT_FMT(price > 0, "price %g of a list", price);
    }
}

} // namespace faiss_flashgmm
