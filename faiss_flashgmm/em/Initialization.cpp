#include <faiss_flashgmm/em/Initialization.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <faiss_flashgmm/utils/Philox.h>
#include <faiss_flashgmm/utils/memory.h>

namespace faiss_flashgmm {

namespace {

constexpr uint64_t kRandomRowsStream = 2;

/// The weights of all rows, or nothing if they are all 1.
std::vector<float> weights_of(RowSource& rows) {
    std::vector<float> weights;
    if (!rows.weighted()) {
        return weights;
    }
    weights.resize(rows.size());
    std::vector<int64_t> indices(rows.size());
    std::iota(indices.begin(), indices.end(), 0);
    rows.gather(indices, nullptr, weights.data());
    return weights;
}

/** Every row in the order of a random draw without replacement with
 * probability proportional to weight (Efraimidis and Spirakis: sort by
 * log(u) / w). Rows of weight 0 are left out.
 */
class DrawOrder {
   public:
    DrawOrder(RowSource& rows, uint64_t seed) {
        const Philox random(seed, kRandomRowsStream);
        const std::vector<float> weights = weights_of(rows);
        keys_.reserve(rows.size());
        for (int64_t i = 0; i < rows.size(); i++) {
            const double w = weights.empty() ? 1 : weights[i];
            if (w > 0) {
                const auto bits = random.block(i);
                const double u = (double(bits[0]) + 0.5) * 0x1p-32 +
                        double(bits[1]) * 0x1p-64;
                keys_.push_back({-std::log(u) / w, i});
            }
        }
    }

    /// The next count rows, or those that are left.
    std::vector<int64_t> next(int64_t count) {
        const auto begin = keys_.begin() + taken_;
        const auto end = begin + std::min<int64_t>(count, keys_.end() - begin);
        std::nth_element(begin, end, keys_.end());
        std::sort(begin, end);
        taken_ = end - keys_.begin();
        std::vector<int64_t> rows(end - begin);
        std::transform(
                begin, end, rows.begin(), [](auto& key) { return key.second; });
        return rows;
    }

   private:
    std::vector<std::pair<double, int64_t>> keys_;
    int64_t taken_ = 0; ///< of the keys, sorted
};

std::string_view bytes_of(const float* row, int64_t d) {
    return {reinterpret_cast<const char*>(row), size_t(d) * sizeof(float)};
}

} // namespace

void draw_random_rows(
        RowSource& rows,
        int64_t first,
        int64_t k,
        uint64_t seed,
        float* means) {
    const int64_t d = rows.dim();
    std::unordered_set<std::string_view> seen; // views into means
    for (int64_t c = 0; c < first; c++) {
        seen.insert(bytes_of(means + c * d, d));
    }
    DrawOrder order(rows, seed);
    std::vector<int64_t> repeated;
    int64_t filled = first;
    std::vector<float> drawn;
    while (filled < k) {
        const std::vector<int64_t> next = order.next(k - filled);
        if (next.empty()) {
            break;
        }
        drawn.resize(next.size() * d);
        rows.gather(next, drawn.data(), nullptr);
        for (size_t i = 0; i < next.size(); i++) {
            float* mean = means + filled * d;
            std::copy_n(drawn.data() + i * d, d, mean);
            if (seen.insert(bytes_of(mean, d)).second) {
                filled++;
            } else if (int64_t(repeated.size()) < k) {
                repeated.push_back(next[i]);
            }
        }
    }
    for (size_t i = 0; filled < k; filled++, i++) {
        const int64_t row = repeated[i % repeated.size()];
        rows.gather({&row, 1}, means + filled * d, nullptr);
    }
}

void draw_kmeans_pp(
        RowSource& rows,
        int64_t first,
        int64_t k,
        uint64_t seed,
        float* means,
        const std::function<void(int64_t)>& on_mean) {
    const int64_t n = rows.size();
    const int64_t d = rows.dim();
    std::vector<float> x;
    resize_or_throw(x, uint64_t(n) * d, "the sample of k-means++");
    std::vector<int64_t> indices(n);
    std::iota(indices.begin(), indices.end(), 0);
    std::vector<float> weights(n);
    rows.gather(indices, x.data(), weights.data());

    std::vector<double> nearest(n, std::numeric_limits<double>::infinity());
    const auto add_mean = [&](const float* mean) {
#pragma omp parallel for
        for (int64_t i = 0; i < n; i++) {
            const float* row = x.data() + i * d;
            double sum = 0;
            for (int64_t j = 0; j < d; j++) {
                const double delta = double(row[j]) - mean[j];
                sum += delta * delta;
            }
            nearest[i] = std::min(nearest[i], sum);
        }
    };
    Philox random(seed, kSeedingStream);
    const auto draw = [&](auto&& mass) {
        double total = 0;
        for (int64_t i = 0; i < n; i++) {
            total += mass(i);
        }
        double left = random.uniform() * total;
        int64_t chosen = -1;
        for (int64_t i = 0; i < n; i++) {
            const double m = mass(i);
            if (m > 0) {
                chosen = i;
                left -= m;
                if (left < 0) {
                    break;
                }
            }
        }
        return chosen;
    };

    for (int64_t c = 0; c < k; c++) {
        float* mean = means + c * d;
        if (c >= first) {
            int64_t row = -1;
            if (c > 0) {
                row = draw([&](int64_t i) {
                    return double(weights[i]) * nearest[i];
                });
            }
            if (row < 0) { // the first mean, or every row is a mean already
                row = draw([&](int64_t i) { return double(weights[i]); });
            }
            std::copy_n(x.data() + row * d, d, mean);
        }
        add_mean(mean);
        if (on_mean) {
            on_mean(c + 1);
        }
    }
}

} // namespace faiss_flashgmm
