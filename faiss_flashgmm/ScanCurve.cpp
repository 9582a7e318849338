#include <faiss_flashgmm/ScanCurve.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <span>

#include <faiss/impl/FaissAssert.h>

namespace faiss_flashgmm {

namespace {

/// Queries whose distances are held at once.
constexpr idx_t kBlock = 1024;

/// Sums up to each place but the last, which stands for "never".
std::vector<double> running_means(
        const std::vector<int64_t>& sums,
        int64_t count) {
    std::vector<double> means;
    int64_t sum = 0;
    for (size_t i = 0; i + 1 < sums.size(); i++) {
        sum += sums[i];
        means.push_back(double(sum) / double(count));
    }
    return means;
}

/// Rows that are in the same lists cost the same: they count together.
struct RowGroups {
    /// Of each group, size rows.size() * width; a list may be named twice.
    std::vector<idx_t> lists;
    std::vector<int64_t> rows; ///< of each group, how many

    RowGroups(idx_t n, int width, const idx_t* lists_of_rows) {
        std::vector<idx_t> sets;
        sets.reserve(n * width);
        for (idx_t i = 0; i < n; i++) {
            const idx_t* row = lists_of_rows + i * width;
            const auto set = sets.insert(sets.end(), row, row + width);
            std::sort(set, sets.end(), std::greater<>());
            if (*set < 0) {
                sets.erase(set, sets.end());
            } else {
                std::replace(set, sets.end(), idx_t(-1), *set);
            }
        }
        std::vector<size_t> order(sets.size() / width);
        std::iota(order.begin(), order.end(), size_t(0));
        const auto set = [&](size_t i) {
            return std::span(&sets[i * width], width);
        };
        std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
            return std::ranges::lexicographical_compare(set(a), set(b));
        });
        for (size_t i = 0; i < order.size(); i++) {
            if (i == 0 ||
                !std::ranges::equal(set(order[i - 1]), set(order[i]))) {
                lists.insert(
                        lists.end(),
                        set(order[i]).begin(),
                        set(order[i]).end());
                rows.push_back(0);
            }
            rows.back()++;
        }
    }
};

} // namespace

double cost_of_recall(
        const std::vector<double>& recall,
        const std::vector<double>& cost,
        double wanted) {
    const size_t i = std::find_if(
                             recall.begin(),
                             recall.end(),
                             [&](double found) { return found >= wanted; }) -
            recall.begin();
    if (i == recall.size()) {
        return std::numeric_limits<double>::infinity();
    }
    if (i == 0) {
        return cost[0];
    }
    const double part = (wanted - recall[i - 1]) / (recall[i] - recall[i - 1]);
    return std::exp(
            (1 - part) * std::log(cost[i - 1]) + part * std::log(cost[i]));
}

double ScanCurve::probes_at(double wanted) const {
    const size_t i = std::lower_bound(recall.begin(), recall.end(), wanted) -
            recall.begin();
    if (i == recall.size()) {
        return std::numeric_limits<double>::infinity();
    }
    return i == 0 ? 1
                  : double(i) +
                    (wanted - recall[i - 1]) / (recall[i] - recall[i - 1]);
}

ProbingOrder::ProbingOrder(
        const faiss::Index& quantizer,
        idx_t nq,
        const float* queries)
        : nq(nq),
          nlist(quantizer.ntotal),
          places(nq * quantizer.ntotal, int32_t(quantizer.ntotal)) {
    const idx_t most = std::min(kBlock, nq);
    std::vector<idx_t> order(most * nlist);
    std::vector<float> distances(order.size());
    for (idx_t q0 = 0; q0 < nq; q0 += kBlock) {
        const idx_t count = std::min(kBlock, nq - q0);
        quantizer.search(
                count,
                queries + q0 * quantizer.d,
                nlist,
                distances.data(),
                order.data());
        for (idx_t i = 0; i < count * nlist; i++) {
            if (order[i] >= 0) {
                places[(q0 + i / nlist) * nlist + order[i]] =
                        int32_t(i % nlist);
            }
        }
    }
}

ScanCurve measure_scans(
        const faiss::Index& quantizer,
        idx_t n,
        int width,
        const idx_t* lists,
        idx_t nq,
        const float* queries,
        int k,
        const idx_t* neighbors) {
    return measure_scans(
            ProbingOrder(quantizer, nq, queries),
            n,
            width,
            lists,
            k,
            neighbors);
}

ScanCurve measure_scans(
        const ProbingOrder& order,
        idx_t n,
        int width,
        const idx_t* lists,
        int k,
        const idx_t* neighbors) {
    const idx_t nlist = order.nlist;
    std::vector<int64_t> sizes(nlist), scanned(nlist + 1), found(nlist + 1);
    for (idx_t i = 0; i < n * width; i++) {
        if (lists[i] >= 0) {
            sizes[lists[i]]++;
        }
    }
    int64_t wanted = 0;
    for (idx_t q = 0; q < order.nq; q++) {
        const int32_t* place = &order.places[q * nlist];
        for (idx_t list = 0; list < nlist; list++) {
            scanned[place[list]] += sizes[list];
        }
        for (int j = 0; j < k; j++) {
            const idx_t row = neighbors[q * k + j];
            if (row < 0) {
                continue;
            }
            FAISS_THROW_IF_NOT_FMT(
                    row < n,
                    "neighbor %ld, there are %ld rows",
                    long(row),
                    long(n));
            wanted++;
            idx_t first = nlist;
            for (int t = 0; t < width; t++) {
                const idx_t list = lists[row * width + t];
                first = std::min<idx_t>(first, list < 0 ? nlist : place[list]);
            }
            found[first]++;
        }
    }
    ScanCurve curve;
    curve.recall = running_means(found, std::max<int64_t>(wanted, 1));
    curve.scanned = running_means(scanned, std::max<int64_t>(order.nq, 1));
    return curve;
}

std::vector<double> distinct_scanned(
        const ProbingOrder& order,
        idx_t n,
        int width,
        const idx_t* lists) {
    const idx_t nlist = order.nlist;
    const RowGroups groups(n, width, lists);
    std::vector<int64_t> scanned(nlist + 1);
#pragma omp parallel
    {
        std::vector<int64_t> mine(nlist + 1);
#pragma omp for
        for (idx_t q = 0; q < order.nq; q++) {
            const int32_t* place = &order.places[q * nlist];
            for (size_t g = 0; g < groups.rows.size(); g++) {
                int32_t first = int32_t(nlist);
                for (int t = 0; t < width; t++) {
                    first = std::min(first, place[groups.lists[g * width + t]]);
                }
                mine[first] += groups.rows[g];
            }
        }
#pragma omp critical
        for (idx_t r = 0; r <= nlist; r++) {
            scanned[r] += mine[r];
        }
    }
    return running_means(scanned, std::max<int64_t>(order.nq, 1));
}

} // namespace faiss_flashgmm
