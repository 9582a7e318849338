#include <faiss_flashgmm/io/VectorFile.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>

#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/half.h>
#include <faiss_flashgmm/utils/memory.h>

namespace faiss_flashgmm {

namespace {

struct Half {
    uint16_t bits;
    operator float() const {
        return half_to_float(bits);
    }
};

/// Calls function with a value of the type of the elements.
template <class Function>
void with_element(ElementType type, Function&& function) {
    switch (type) {
        case ElementType::float32:
            return function(float());
        case ElementType::float64:
            return function(double());
        case ElementType::float16:
            return function(Half());
        case ElementType::uint8:
            return function(uint8_t());
        case ElementType::int8:
            return function(int8_t());
        case ElementType::int32:
            return function(int32_t());
    }
}

template <class T>
constexpr ElementType type_of() {
    if constexpr (std::is_same_v<T, float>) {
        return ElementType::float32;
    } else if constexpr (std::is_same_v<T, double>) {
        return ElementType::float64;
    } else if constexpr (std::is_same_v<T, uint8_t>) {
        return ElementType::uint8;
    } else if constexpr (std::is_same_v<T, int8_t>) {
        return ElementType::int8;
    } else {
        static_assert(std::is_same_v<T, int32_t>);
        return ElementType::int32;
    }
}

/// The type of rows that can be used where they are in the file.
std::optional<RowType> type_in_place(const VectorLayout& layout) {
    if (layout.row_headers || layout.offset % size_of(layout.type) != 0) {
        return std::nullopt;
    }
    switch (layout.type) {
        case ElementType::float32:
            return RowType::float32;
        case ElementType::float16:
            return RowType::float16;
        case ElementType::uint8:
            return RowType::uint8;
        case ElementType::int8:
            return RowType::int8;
        default:
            return std::nullopt;
    }
}

/// d elements at an address of any alignment.
template <class T>
void convert_row(int64_t d, const uint8_t* from, float* to) {
    for (int64_t j = 0; j < d; j++) {
        T value;
        std::memcpy(&value, from + j * sizeof(T), sizeof(T));
        to[j] = float(value);
    }
}

} // namespace

VectorFile::VectorFile(const std::string& path)
        : file_(path),
          layout_(VectorLayout::parse(path, file_.data(), file_.size())) {}

void VectorFile::check_range(int64_t begin, int64_t count) const {
    FLASHGMM_THROW_IF_NOT_FMT(
            begin >= 0 && count >= 0 && begin <= layout_.n - count,
            "rows [%lld, %lld + %lld) of the %lld of %s",
            static_cast<long long>(begin),
            static_cast<long long>(begin),
            static_cast<long long>(count),
            static_cast<long long>(layout_.n),
            path().c_str());
}

const uint8_t* VectorFile::row(int64_t i) const {
    const uint8_t* const values =
            file_.data() + layout_.offset + uint64_t(i) * layout_.stride;
    if (layout_.row_headers) {
        int32_t d;
        std::memcpy(&d, values - sizeof(d), sizeof(d));
        FLASHGMM_THROW_IF_NOT_FMT(
                d == layout_.d,
                "row %lld of %s is of %d elements, row 0 of %lld",
                static_cast<long long>(i),
                path().c_str(),
                d,
                static_cast<long long>(layout_.d));
    }
    return values;
}

Rows VectorFile::read(int64_t begin, int64_t count) {
    check_range(begin, count);
    if (const std::optional<RowType> type = type_in_place(layout_);
        type && count > 0) {
        return {count, RowView(row(begin), *type)};
    }
    const int64_t d = layout_.d;
    resize_or_throw(chunk_, uint64_t(count) * d, "a chunk of rows of a file");
    with_element(layout_.type, [&]<class T>(T) {
        for (int64_t i = 0; i < count; i++) {
            convert_row<T>(d, row(begin + i), chunk_.data() + i * d);
        }
    });
    return {count, chunk_.data()};
}

template <class T>
void VectorFile::read_as(int64_t begin, int64_t count, T* out) const {
    check_range(begin, count);
    FLASHGMM_THROW_IF_NOT_FMT(
            layout_.type == type_of<T>(),
            "%s holds elements of %s, not of %s",
            path().c_str(),
            name_of(layout_.type),
            name_of(type_of<T>()));
    for (int64_t i = 0; i < count; i++) {
        std::memcpy(out + i * layout_.d, row(begin + i), layout_.d * sizeof(T));
    }
}

template void VectorFile::read_as(int64_t, int64_t, float*) const;
template void VectorFile::read_as(int64_t, int64_t, double*) const;
template void VectorFile::read_as(int64_t, int64_t, uint8_t*) const;
template void VectorFile::read_as(int64_t, int64_t, int8_t*) const;
template void VectorFile::read_as(int64_t, int64_t, int32_t*) const;

Matrix<float> read_all(RowSource& source) {
    constexpr int64_t kChunk = 1 << 16;
    Matrix<float> all{source.size(), source.dim(), {}};
    resize_or_throw(all.values, uint64_t(all.n) * all.d, "all rows");
    for (int64_t begin = 0; begin < all.n; begin += kChunk) {
        const Rows rows = source.read(begin, std::min(kChunk, all.n - begin));
        to_floats(rows.x, rows.n * all.d, all.values.data() + begin * all.d);
    }
    return all;
}

} // namespace faiss_flashgmm
