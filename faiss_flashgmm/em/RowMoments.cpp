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

/// The first thing wrong with the rows, in their order.
std::string first_error(int64_t first, int64_t d, const Rows& rows) {
    for (int64_t i = 0; i < rows.n; i++) {
        const float w = rows.weights ? rows.weights[i] : 1;
        if (!(w >= 0) || std::isinf(w)) {
            return format(
                    "the weight of row %ld is %g; weights must be finite and "
                    ">= 0",
                    long(first + i),
                    double(w));
        }
        const float* x = rows.x + i * d;
        const int64_t column = first_not_finite(d, x);
        if (column < d) {
            return format(
                    "row %ld has %g in column %ld; rows must be finite",
                    long(first + i),
                    double(x[column]),
                    long(column));
        }
    }
    return "";
}

} // namespace

RowMoments::RowMoments(std::vector<double> pivot)
        : d_(int64_t(pivot.size())),
          pivot_(std::move(pivot)),
          flat_(2 * d_ + 3, 0.0) {}

std::string RowMoments::add(int64_t first, const Rows& rows) {
    uint32_t bad = 0;
    for (int64_t i = 0; rows.weights && i < rows.n; i++) {
        bad |= !(rows.weights[i] >= 0) || std::isinf(rows.weights[i]);
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
        for (int64_t i = 0; i < rows.n; i++) {
            const double w = rows.weights ? rows.weights[i] : 1;
            const float* x = rows.x + i * d_;
            for (int64_t j = begin; j < end; j++) {
                bad |= is_not_finite(x[j]);
                const double delta = double(x[j]) - pivot[j];
                sums[j] += w * delta;
                squares[j] += w * delta * delta;
            }
        }
    }
    if (bad) {
        return first_error(first, d_, rows);
    }
    double* counts = flat_.data() + 2 * d_;
    counts[0] += double(rows.n);
    for (int64_t i = 0; rows.weights && i < rows.n; i++) {
        counts[1] += rows.weights[i] > 0;
        counts[2] += rows.weights[i];
    }
    if (!rows.weights) {
        counts[1] += double(rows.n);
        counts[2] += double(rows.n);
    }
    return "";
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
