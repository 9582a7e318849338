#include <faiss_flashgmm/Demand.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <utility>

#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/NearRows.h>

namespace faiss_flashgmm {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Lists of a surrogate's probing order that are kept, over probes.
constexpr idx_t kOrder = 4;
/// What copies leave of the lists that have to be probed.
constexpr double kProbesLeft = 0.5;
/// Surrogates and rows whose places in each other's orders are counted.
constexpr idx_t kPlacedSurrogates = 4096, kPlacedRows = 65536;
/// Neighbors of the first ring; each ring doubles them.
constexpr int kFirstRing = 8;

idx_t order_size(const faiss::Index& quantizer, int64_t probes) {
    return std::min<idx_t>(
            kOrder * std::min<idx_t>(probes, quantizer.ntotal),
            quantizer.ntotal);
}

idx_t reach_of(
        const DemandParameters& parameters,
        const faiss::Index& quantizer) {
    return parameters.reach > 0
            ? parameters.reach
            : idx_t(std::ceil(4 * std::sqrt(double(quantizer.ntotal))));
}

/// For neighbors of so many rows.
NearRowsOptions near_options(
        const DemandParameters& parameters,
        const faiss::Index& quantizer,
        idx_t rows) {
    return {parameters.search,
            reach_of(parameters, quantizer),
            rows,
            parameters.neighbors};
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

/// Weight of a vote for neighbor j.
double neighbor_weight(idx_t j) {
    return 1 / (1 + double(j) / 32);
}

/// The mean of it over each ring.
std::vector<double> ring_weights(const std::vector<int>& ends) {
    std::vector<double> weights;
    int begin = 0;
    for (int end : ends) {
        double sum = 0;
        for (int j = begin; j < end; j++) {
            sum += neighbor_weight(j);
        }
        weights.push_back(sum / (end - begin));
        begin = end;
    }
    return weights;
}

/// The ring of a distance that is within the last radius.
idx_t ring_of(float distance, const float* radius) {
    idx_t ring = 0;
    while (distance > radius[ring]) {
        ring++;
    }
    return ring;
}

/// The last radius of each.
std::vector<float> widest(const std::vector<float>& radii, size_t n_rings) {
    std::vector<float> last(radii.size() / n_rings);
    for (size_t y = 0; y < last.size(); y++) {
        last[y] = radii[(y + 1) * n_rings - 1];
    }
    return last;
}

/// `size` numbers below n, evenly spaced.
std::vector<idx_t> evenly(idx_t size, idx_t n) {
    std::vector<idx_t> ids(size);
    for (idx_t i = 0; i < size; i++) {
        ids[i] = i * n / size;
    }
    return ids;
}

/// Who stands for the queries.
struct Surrogates {
    std::vector<float> rows;
    std::vector<idx_t> self; ///< the training row that it is, or -1
    std::vector<float> weights;
    std::vector<float> radii; ///< n_rings each

    idx_t size() const {
        return self.size();
    }
};

/// The lists in which surrogates find the share `recall` of what they want if
/// each of the n rows x is in its nearest list alone; of a sample of both.
idx_t lists_for_recall(
        const faiss::Index& quantizer,
        const DemandParameters& parameters,
        const Surrogates& surrogates,
        idx_t n,
        const float* x) {
    const idx_t d = quantizer.d;
    const idx_t reach =
            std::min<idx_t>(reach_of(parameters, quantizer), quantizer.ntotal);
    const std::vector<double> ring_weight =
            ring_weights(rings(parameters.neighbors));
    const idx_t n_rings = ring_weight.size();

    const std::vector<idx_t> some = evenly(
            std::min(surrogates.size(), kPlacedSurrogates), surrogates.size());
    const std::vector<float> some_rows =
            gather_rows(some, surrogates.rows.data(), d);
    const std::vector<float> radii =
            gather_rows(some, surrogates.radii.data(), n_rings);
    const std::vector<idx_t> order = probing_order(
            quantizer, parameters.search, reach, some.size(), some_rows.data());

    const std::vector<idx_t> ids = evenly(std::min(n, kPlacedRows), n);
    const std::vector<float> rows = gather_rows(ids, x, d);
    std::vector<idx_t> lists(ids.size());
    quantizer.assign(ids.size(), rows.data(), lists.data());

    // Integers: sums of any order are the same.
    constexpr double kUnit = 1 << 20;
    std::vector<int64_t> at_place(reach + 1);
    std::mutex mutex;
    near_rows(
            quantizer,
            near_options(parameters, quantizer, ids.size()),
            some.size(),
            some_rows.data())
            ->within(
                    ids.size(),
                    rows.data(),
                    widest(radii, n_rings).data(),
                    [&](idx_t first, const auto& near) {
                        std::lock_guard lock(mutex);
                        for (size_t i = 0; i < near.size(); i++) {
                            for (const Near& y : near[i]) {
                                if (surrogates.self[some[y.base]] ==
                                    ids[first + i]) {
                                    continue;
                                }
                                const auto begin =
                                        order.begin() + y.base * reach;
                                const idx_t place = std::find(
                                                            begin,
                                                            begin + reach,
                                                            lists[first + i]) -
                                        begin;
                                const idx_t ring = ring_of(
                                        y.distance, &radii[y.base * n_rings]);
                                at_place[place] += std::llround(
                                        kUnit * ring_weight[ring] *
                                        surrogates.weights[some[y.base]]);
                            }
                        }
                    });
    double wanted = 0;
    for (int64_t units : at_place) {
        wanted += parameters.recall * double(units);
    }
    idx_t place = 0;
    for (double found = 0; place < reach; place++) {
        found += double(at_place[place]);
        if (found >= wanted) {
            break;
        }
    }
    return std::min(place + 1, reach);
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
            recall > 0 && recall <= 1,
            "demand: recall is %g, must be above 0 and at most 1",
            recall);
    FAISS_THROW_IF_NOT_FMT(
            probes >= 0, "demand: probes is %d, must be >= 0", probes);
    FAISS_THROW_IF_NOT_FMT(
            spread > 0 && std::isfinite(spread),
            "demand: spread is %g, must be finite and > 0",
            spread);
    FAISS_THROW_IF_NOT_FMT(
            price_weight >= 0 && std::isfinite(price_weight),
            "demand: price_weight is %g, must be finite and >= 0",
            price_weight);
    FAISS_THROW_IF_NOT_FMT(
            reach >= 0, "demand: reach is %d, must be >= 0", reach);
    FAISS_THROW_IF_NOT_FMT(
            surrogates >= 0,
            "demand: surrogates is %ld, must be >= 0",
            long(surrogates));
    FAISS_THROW_IF_NOT_FMT(
            query_weight > 0 && std::isfinite(query_weight),
            "demand: query_weight is %g, must be finite and > 0",
            query_weight);
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
    const idx_t m = parameters.surrogates > 0
            ? std::min<idx_t>(parameters.surrogates, n)
            : n;
    Surrogates all;
    all.self = evenly(m, n);
    all.rows = gather_rows(all.self, x, d);
    all.weights.assign(m, 1);
    if (queries) {
        all.self.resize(m + n_queries, -1);
        all.rows.insert(all.rows.end(), queries, queries + n_queries * d);
        all.weights.resize(m + n_queries, float(parameters.query_weight));
    }

    const std::vector<int> ends = rings(parameters.neighbors);
    const idx_t n_rings = ends.size();
    all.radii.assign(all.size() * n_rings, -kInfinity);
    near_rows(quantizer, near_options(parameters, quantizer, all.size()), n, x)
            ->nearest(
                    all.size(),
                    all.rows.data(),
                    parameters.neighbors,
                    all.self.data(),
                    [&](idx_t first, const auto& distances) {
                        float* radius = &all.radii[first * n_rings];
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

    Demand learned;
    learned.probes = parameters.probes > 0
            ? parameters.probes
            : std::max<idx_t>(
                      1,
                      std::llround(
                              kProbesLeft *
                              double(lists_for_recall(
                                      quantizer, parameters, all, n, x))));
    const idx_t n_order = order_size(quantizer, learned.probes);
    const std::vector<idx_t> order = probing_order(
            quantizer, parameters.search, n_order, all.size(), all.rows.data());
    const std::vector<idx_t> sorted = sort_by_list(
            all.size(), order.data(), n_order, nlist, learned.begin);
    learned.rows = gather_rows(sorted, all.rows.data(), d);
    learned.radii = gather_rows(sorted, all.radii.data(), n_rings);
    learned.weights = gather_rows(sorted, all.weights.data(), 1);
    learned.order.resize(sorted.size() * n_order);
    std::vector<double> probed(nlist, 1.0); // never zero
    double weight = 0;
    for (size_t i = 0; i < sorted.size(); i++) {
        weight += learned.weights[i];
        for (idx_t r = 0; r < n_order; r++) {
            const idx_t list = order[sorted[i] * n_order + r];
            learned.order[i * n_order + r] = int32_t(list);
            if (list >= 0 && r < learned.probes) {
                probed[list] += learned.weights[i];
            }
        }
    }
    double mean = 0;
    for (double count : probed) {
        mean += count / double(nlist);
    }
    for (double count : probed) {
        learned.prices.push_back(float(count / mean));
    }
    const idx_t found = std::min<idx_t>(parameters.neighbors, n);
    for (idx_t j = 0; j < found; j++) {
        learned.votes += weight * neighbor_weight(j) / double(n);
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
    const idx_t n_order = order_size(quantizer, probes);
    const std::vector<double> ring_weight =
            ring_weights(rings(parameters.neighbors));
    const idx_t n_rings = ring_weight.size();
    std::vector<double> probed(n_order + 1);
    for (idx_t r = 0; r <= n_order; r++) {
        probed[r] = 1 /
                (1 +
                 std::pow(
                         double(r + 1) / double(probes),
                         1 / parameters.spread));
    }

    const auto choose = [&](idx_t first, const auto& near) {
        std::vector<Vote> row_votes;
        std::vector<double> gains(nlist);
        std::vector<int32_t> touched;
        for (size_t i = 0; i < near.size(); i++) {
            const idx_t row = first + i;
            if (primary[row] < 0) {
                continue;
            }
            row_votes.clear();
            for (const Near& y : near[i]) {
                const int32_t* lists = &order[y.base * n_order];
                const idx_t place =
                        std::find(
                                lists, lists + n_order, int32_t(primary[row])) -
                        lists;
                const double weight =
                        ring_weight[ring_of(
                                y.distance, &radii[y.base * n_rings])] *
                        weights[y.base] / votes;
                row_votes.push_back({y.base, weight, place});
            }
            float last = kInfinity;
            for (int t = 0; t < width; t++) {
                touched.clear();
                for (const Vote& vote : row_votes) {
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
                    const double score = gains[list] -
                            parameters.price_weight * prices[list];
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
                for (Vote& vote : row_votes) {
                    const int32_t* lists = &order[vote.surrogate * n_order];
                    vote.place =
                            std::find(lists, lists + vote.place, best) - lists;
                }
            }
        }
    };
    near_listed_rows(
            quantizer,
            near_options(parameters, quantizer, n),
            rows.data(),
            begin.data())
            ->within(n, x, widest(radii, n_rings).data(), choose);
}

void Demand::check_sizes(
        const faiss::Index& quantizer,
        const DemandParameters& parameters) const {
    FAISS_THROW_IF_NOT_MSG(
            !empty(), "the demand has not been learned: call train()");
    const size_t nlist = quantizer.ntotal;
    FAISS_THROW_IF_NOT_FMT(
            probes > 0 && votes > 0 && std::isfinite(votes),
            "the demand serves %ld probes with %g votes a row",
            long(probes),
            votes);
    FAISS_THROW_IF_NOT_FMT(
            begin.size() == nlist + 1 && prices.size() == nlist,
            "the demand is that of %zu lists, the quantizer holds %zu",
            begin.size() - 1,
            nlist);
    const size_t m = std::max<idx_t>(begin.back(), 0);
    FAISS_THROW_IF_NOT_FMT(
            rows.size() == m * quantizer.d && weights.size() == m &&
                    order.size() == m * order_size(quantizer, probes) &&
                    radii.size() == m * rings(parameters.neighbors).size(),
            "the demand of %zu surrogates has %zu values, %zu weights, %zu "
            "lists and %zu radii",
            m,
            rows.size(),
            weights.size(),
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
    for (float weight : weights) {
        FAISS_THROW_IF_NOT_FMT(weight > 0, "weight %g of a surrogate", weight);
    }
}

} // namespace faiss_flashgmm
