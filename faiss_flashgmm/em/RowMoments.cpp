#include <faiss_flashgmm/em/RowMoments.h>

#include <omp.h>

#include <algorithm>
#include <cmath>

#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/finite.h>

namespace faiss_flashgmm {

namespace {

/// Columns of a cache line: what a thread takes at least.
constexpr int64_t kLineColumns = 16;

bool is_bad_weight(float w) {
    return !(w >= 0) || std::isinf(w);
}

/// The first thing wrong with the rows, in their order.
std::string first_error(
        int64_t first,
        int64_t n,
        int64_t d,
        const float* x,
        const float* weights) {
    for (int64_t i = 0; i < n; i++) {
        if (weights && is_bad_weight(weights[i])) {
            return RowMoments::bad_weight(first + i, weights[i]);
        }
        const int64_t column = first_not_finite(d, x + i * d);
        if (column < d) {
            return RowMoments::bad_value(first + i, column, x[i * d + column]);
        }
    }
    return "";
}

} // namespace

RowMoments::RowMoments(std::vector<double> pivot)
        : d_(int64_t(pivot.size())),
          pivot_(std::move(pivot)),
          flat_(2 * d_ + 3, 0.0) {}

std::string RowMoments::bad_weight(int64_t row, double weight) {
    return format(
            "the weight of row %ld is %g; weights must be finite and >= 0",
            long(row),
            weight);
}

std::string RowMoments::bad_value(int64_t row, int64_t column, double value) {
    return format(
            "row %ld has %g in column %ld; rows must be finite",
            long(row),
            value,
            long(column));
}

std::string RowMoments::add(int64_t first, const Rows& rows) {
    std::string error;
    const auto add = [&](int64_t begin, int64_t n, const float* x) {
        const float* weights = rows.weights ? rows.weights + begin : nullptr;
        if (error.empty() && !add_sums(n, x, weights)) {
            error = first_error(first + begin, n, d_, x, weights);
        }
    };
    for_float_blocks(rows.n, d_, rows.x, add);
    return error;
}

/// Returns false if something is wrong with a row.
bool RowMoments::add_sums(int64_t n, const float* x, const float* weights) {
    uint32_t bad = 0;
    for (int64_t i = 0; weights && i < n; i++) {
        bad |= is_bad_weight(weights[i]);
    }
    const int64_t lines = (d_ + kLineColumns - 1) / kLineColumns;
    const int64_t parts = std::min<int64_t>(omp_get_max_threads(), lines);
#pragma omp parallel for reduction(| : bad)
    for (int64_t part = 0; part < parts; part++) {
        const int64_t begin = lines * part / parts * kLineColumns;
        const int64_t end =
                std::min(lines * (part + 1) / parts * kLineColumns, d_);
        const double* pivot = pivot_.data();
        double* sums = flat_.data();
        double* squares = flat_.data() + d_;
        for (int64_t i = 0; i < n; i++) {
            const double w = weights ? weights[i] : 1;
            const float* row = x + i * d_;
            for (int64_t j = begin; j < end; j++) {
                bad |= is_not_finite(row[j]);
                const double delta = double(row[j]) - pivot[j];
                sums[j] += w * delta;
                squares[j] += w * delta * delta;
            }
        }
    }
    double* counts = flat_.data() + 2 * d_;
    counts[0] += double(n);
    for (int64_t i = 0; weights && i < n; i++) {
        counts[1] += weights[i] > 0;
        counts[2] += weights[i];
    }
    if (!weights) {
        counts[1] += double(n);
        counts[2] += double(n);
    }
    return bad == 0;
}

std::vector<double> RowMoments::mean() const {
    std::vector<double> result(d_);
    for (int64_t j = 0; j < d_; j++) {
        result[j] = pivot_[j] + flat_[j] / weight();
    }
    return result;
}

double RowMoments::variance() const {
    double total = 0;
    for (int64_t j = 0; j < d_; j++) {
        const double delta = flat_[j] / weight();
        total += std::max(0.0, flat_[d_ + j] / weight() - delta * delta);
    }
    return total / double(d_);
}

} // namespace faiss_flashgmm
