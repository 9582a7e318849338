#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace faiss_flashgmm {

/// What the coordinates of rows are stored as.
enum class RowType : uint8_t { float32, float16, bfloat16, int8, uint8 };

const char* name_of(RowType type);

/// Bytes of a coordinate.
constexpr int64_t size_of(RowType type) {
    switch (type) {
        case RowType::float32:
            return 4;
        case RowType::float16:
        case RowType::bfloat16:
            return 2;
        default:
            return 1;
    }
}

/// Rows in memory, row-major, without their number.
struct RowView {
    const void* data = nullptr;
    RowType type = RowType::float32;

    RowView() = default;
    RowView(const float* x) : data(x) {} // what most rows are
    RowView(const void* data, RowType type) : data(data), type(type) {}

    /// The view that starts so many coordinates further on.
    RowView from(int64_t coordinates) const {
        return {static_cast<const char*>(data) + coordinates * size_of(type),
                type};
    }
    /// Throws Error if the rows are not float32.
    const float* floats() const;
};

/// Host memory to floats, exactly.
void to_floats(RowView x, int64_t size, float* out);

/// Calls work(first row, rows, floats) for all n rows in host memory: at once
/// if they are floats, else in blocks.
template <class Work>
void for_float_blocks(int64_t n, int64_t d, RowView x, Work&& work) {
    if (x.type == RowType::float32) {
        work(0, n, x.floats());
        return;
    }
    const int64_t block = std::max<int64_t>(1, (1 << 20) / d);
    std::vector<float> converted(std::min(n, block) * d);
    for (int64_t first = 0; first < n; first += block) {
        const int64_t count = std::min(block, n - first);
        to_floats(x.from(first * d), count * d, converted.data());
        work(first, count, converted.data());
    }
}

/// Names a chunk of rows that is read again and again; see Backend::begin_fit.
struct RowKey {
    int64_t source = -1; ///< negative: the rows come once
    int64_t begin = 0;

    auto operator<=>(const RowKey&) const = default;
};

/// A view of consecutive rows.
struct Rows {
    int64_t n = 0;
    RowView x;                      ///< n * d coordinates
    const float* weights = nullptr; ///< size n, or null: all 1
    RowKey key = {};
};

} // namespace faiss_flashgmm
