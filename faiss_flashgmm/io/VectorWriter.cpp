#include <faiss_flashgmm/io/VectorWriter.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/half.h>

namespace faiss_flashgmm {

namespace {

/// Every .npy header is of this size, so that n can be filled in at the end.
constexpr size_t kNpyHeader = 128;

const char* npy_name(ElementType type) {
    switch (type) {
        case ElementType::float32:
            return "<f4";
        case ElementType::float64:
            return "<f8";
        case ElementType::float16:
            return "<f2";
        case ElementType::uint8:
            return "|u1";
        case ElementType::int8:
            return "|i1";
        case ElementType::int32:
            return "<i4";
    }
    return "";
}

struct Half {
    uint16_t bits;
};

/// Whether value became a T without loss that matters.
template <class T, class From>
bool convert(From value, T& to) {
    if constexpr (std::is_same_v<T, Half>) {
        to.bits = float_to_half(float(value));
        return std::isfinite(half_to_float(to.bits)) ==
                std::isfinite(float(value));
    } else if constexpr (std::is_floating_point_v<T>) {
        to = T(value);
        return true;
    } else {
        // Both bounds are exact in double; a NaN fails.
        const double wide = double(value);
        if (!(wide >= double(std::numeric_limits<T>::min()) &&
              wide <= double(std::numeric_limits<T>::max()))) {
            return false;
        }
        to = T(value);
        return double(to) == wide;
    }
}

} // namespace

VectorWriter::VectorWriter(
        const std::string& path,
        int64_t d,
        ElementType npy_type)
        : format_(VectorFormat::of(path)), pending_(path), d_(d) {
    if (format_.npy) {
        format_.type = npy_type;
    }
    FLASHGMM_THROW_IF_NOT_FMT(
            d >= 1 && d <= std::numeric_limits<int32_t>::max(),
            "%s: rows of %lld elements",
            path.c_str(),
            static_cast<long long>(d));
    file_.reset(std::fopen(pending_.temporary_path().c_str(), "wb"));
    FLASHGMM_THROW_IF_NOT_FMT(
            file_, "cannot write %s: %s", path.c_str(), std::strerror(errno));
    row_.resize(
            (format_.row_headers ? sizeof(int32_t) : 0) +
            d * size_of(format_.type));
    if (format_.row_headers) {
        const auto width = int32_t(d);
        std::memcpy(row_.data(), &width, sizeof(width));
    } else {
        const std::string begin = header();
        write(begin.data(), begin.size());
    }
}

std::string VectorWriter::header() const {
    if (format_.npy) {
        std::string text("\x93NUMPY\x01\x00", 8);
        const auto length = uint16_t(kNpyHeader - 10);
        text += char(length & 255);
        text += char(length >> 8);
        text += format(
                "{'descr': '%s', 'fortran_order': False, 'shape': (%lld, "
                "%lld), }",
                npy_name(format_.type),
                static_cast<long long>(n_),
                static_cast<long long>(d_));
        text.resize(kNpyHeader - 1, ' ');
        return text + '\n';
    }
    std::string text(2 * sizeof(uint32_t), '\0');
    const uint32_t sizes[2] = {uint32_t(n_), uint32_t(d_)};
    std::memcpy(text.data(), sizes, sizeof(sizes));
    return text;
}

void VectorWriter::write(const void* bytes, uint64_t size) {
    FLASHGMM_THROW_IF_NOT_FMT(
            std::fwrite(bytes, 1, size, file_.get()) == size,
            "cannot write %s: %s",
            pending_.path().c_str(),
            std::strerror(errno));
}

template <class T, class From>
void VectorWriter::append_as(int64_t n, const From* x) {
    uint8_t* const values =
            row_.data() + (format_.row_headers ? sizeof(int32_t) : 0);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < d_; j++) {
            T value;
            FLASHGMM_THROW_IF_NOT_FMT(
                    convert(x[i * d_ + j], value),
                    "row %lld, element %lld is %.9g, which is no %s of %s",
                    static_cast<long long>(n_ + i),
                    static_cast<long long>(j),
                    double(x[i * d_ + j]),
                    name_of(format_.type),
                    pending_.path().c_str());
            std::memcpy(values + j * sizeof(T), &value, sizeof(T));
        }
        write(row_.data(), row_.size());
    }
    n_ += n;
}

template <class From>
void VectorWriter::append_any(int64_t n, const From* x) {
    switch (format_.type) {
        case ElementType::float32:
            return append_as<float>(n, x);
        case ElementType::float64:
            return append_as<double>(n, x);
        case ElementType::float16:
            return append_as<Half>(n, x);
        case ElementType::uint8:
            return append_as<uint8_t>(n, x);
        case ElementType::int8:
            return append_as<int8_t>(n, x);
        case ElementType::int32:
            return append_as<int32_t>(n, x);
    }
}

void VectorWriter::append(int64_t n, const float* x) {
    append_any(n, x);
}

void VectorWriter::append(int64_t n, const double* x) {
    append_any(n, x);
}

void VectorWriter::append(int64_t n, const int64_t* ids) {
    FLASHGMM_THROW_IF_NOT_FMT(
            format_.type == ElementType::int32,
            "%s takes elements of %s, not ids",
            pending_.path().c_str(),
            name_of(format_.type));
    append_as<int32_t>(n, ids);
}

void VectorWriter::finish() {
    if (!format_.row_headers) {
        FLASHGMM_THROW_IF_NOT_FMT(
                format_.npy || n_ <= std::numeric_limits<uint32_t>::max(),
                "%s cannot count %lld rows",
                pending_.path().c_str(),
                static_cast<long long>(n_));
        std::rewind(file_.get());
        const std::string begin = header();
        write(begin.data(), begin.size());
    }
    // Only closing shows that the last bytes found room.
    FLASHGMM_THROW_IF_NOT_FMT(
            std::fclose(file_.release()) == 0,
            "cannot write %s: %s",
            pending_.path().c_str(),
            std::strerror(errno));
    pending_.commit();
}

} // namespace faiss_flashgmm
