#include <faiss_flashgmm/Demand.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/NearRows.h>

namespace faiss_flashgmm {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Lists of a surrogate's probing order that are kept.
constexpr idx_t kOrder = 64;
/// Surrogates whose orders are looked for at once.
constexpr idx_t kOrderedRows = 65536;
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

/// The first lists of rows, as many as are kept.
std::vector<idx_t> probing_order(
        const faiss::Index& quantizer,
        idx_t n,
        const float* x) {
    const idx_t size = order_size(quantizer);
    std::vector<idx_t> order(n * size);
    std::vector<float> distances(std::min(n, kOrderedRows) * size);
    for (idx_t i0 = 0; i0 < n; i0 += kOrderedRows) {
        quantizer.search(
                std::min(kOrderedRows, n - i0),
                x + i0 * quantizer.d,
                size,
                distances.data(),
                &order[i0 * size]);
    }
    return order;
}

/// A surrogate that wants a row.
struct Vote {
    idx_t surrogate;
    double weight;
    idx_t place; ///< in its order, of the best list that has the row
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

    // Evenly spaced ones.
    std::vector<idx_t> ids(m);
    for (idx_t i = 0; i < m; i++) {
        ids[i] = i * available / m;
    }
    const std::vector<float> chosen =
            gather_rows(ids, of_rows ? x : queries, d);

    const std::vector<int> ends = rings(parameters.neighbors);
    const idx_t n_rings = ends.size();
    std::vector<float> all_radii(m * n_rings, -kInfinity);
    near_rows(quantizer, std::max<idx_t>(parameters.reach, n_order), n, x)
            ->nearest(
                    m,
                    chosen.data(),
                    parameters.neighbors,
                    of_rows ? ids.data() : nullptr,
                    [&](idx_t first, const auto& distances) {
                        float* radius = &all_radii[first * n_rings];
                        for (const std::span<const float> found : distances) {
                            for (idx_t r = 0; r < n_rings; r++, radius++) {
                                if (!found.empty()) {
                                    *radius =
                                            found[std::min<size_t>(
                                                          ends[r],
                                                          found.size()) -
                                                  1];
                                }
                            }
                        }
                    });
    const std::vector<idx_t> all_order =
            probing_order(quantizer, m, chosen.data());

    Demand learned;
    const std::vector<idx_t> sorted =
            sort_by_list(m, all_order.data(), n_order, nlist, learned.begin);
    learned.rows = gather_rows(sorted, chosen.data(), d);
    learned.radii = gather_rows(sorted, all_radii.data(), n_rings);
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

    // The smallest radii come first.
    std::vector<float> widest(begin.back());
    for (size_t y = 0; y < widest.size(); y++) {
        widest[y] = radii[(y + 1) * n_rings - 1];
    }
    const auto choose = [&](idx_t first, const auto& near) {
        std::vector<Vote> votes;
        std::vector<double> gains(nlist);
        std::vector<int32_t> touched;
        for (size_t i = 0; i < near.size(); i++) {
            const idx_t row = first + i;
            if (primary[row] < 0) {
                continue;
            }
            votes.clear();
            for (const Near& y : near[i]) {
                const float* radius = &radii[y.base * n_rings];
                idx_t ring = 0;
                while (y.distance > radius[ring]) {
                    ring++;
                }
                const int32_t* lists = &order[y.base * n_order];
                const idx_t place =
                        std::find(
                                lists, lists + n_order, int32_t(primary[row])) -
                        lists;
                votes.push_back({y.base, weights[ring], place});
            }
            float last = kInfinity;
            for (int t = 0; t < width; t++) {
                touched.clear();
                for (const Vote& vote : votes) {
                    const int32_t* lists = &order[vote.surrogate * n_order];
                    for (idx_t r = 0; r < vote.place; r++) {
                        if (lists[r] < 0) {
                            break;
                        }
                        double& gain = gains[lists[r]];
                        if (gain == 0) {
                            touched.push_back(lists[r]);
                        }
                        gain += vote.weight * (probed[r] - probed[vote.place]);
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
                for (Vote& vote : votes) {
                    const int32_t* lists = &order[vote.surrogate * n_order];
                    vote.place =
                            std::find(lists, lists + vote.place, best) - lists;
                }
            }
        }
    };
    near_listed_rows(quantizer, parameters.reach, rows.data(), begin.data())
            ->within(n, x, widest.data(), choose);
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
