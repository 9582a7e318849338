#include <faiss_flashgmm/io/VectorLayout.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

namespace {

static_assert(std::endian::native == std::endian::little);

using ull = unsigned long long;

struct File {
    const std::string& name;
    const uint8_t* bytes;
    uint64_t size;

    template <class T>
    T at(uint64_t offset) const {
        FLASHGMM_THROW_IF_NOT_FMT(
                offset + sizeof(T) <= size,
                "%s ends after %llu bytes, inside its header",
                name.c_str(),
                ull(size));
        T value;
        std::memcpy(&value, bytes + offset, sizeof(T));
        return value;
    }

    bool begins_with(std::string_view text) const {
        return size >= text.size() &&
                std::memcmp(bytes, text.data(), text.size()) == 0;
    }
};

/// Bytes of n rows of d elements; the largest number if that overflows.
uint64_t payload(uint64_t n, uint64_t d, ElementType type) {
    uint64_t elements;
    uint64_t bytes;
    if (__builtin_mul_overflow(n, d, &elements) ||
        __builtin_mul_overflow(elements, uint64_t(size_of(type)), &bytes)) {
        return std::numeric_limits<uint64_t>::max();
    }
    return bytes;
}

void check_shape(const File& file, uint64_t n, uint64_t d) {
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
    FLASHGMM_THROW_IF_NOT_FMT(
            d >= 1 && n <= kMost && d <= kMost,
            "%s says that it holds %llu rows of %llu elements",
            file.name.c_str(),
            ull(n),
            ull(d));
}

VectorLayout parse_vecs(const File& file, ElementType type) {
    VectorLayout layout;
    layout.type = type;
    layout.row_headers = true;
    layout.offset = sizeof(int32_t);
    FLASHGMM_THROW_IF_NOT_FMT(file.size > 0, "%s is empty", file.name.c_str());
    const auto d = file.at<int32_t>(0);
    FLASHGMM_THROW_IF_NOT_FMT(
            d >= 1,
            "%s begins with a row of %d elements",
            file.name.c_str(),
            d);
    layout.d = d;
    layout.stride = sizeof(int32_t) + uint64_t(d) * size_of(type);
    FLASHGMM_THROW_IF_NOT_FMT(
            file.size % layout.stride == 0,
            "%s has %llu bytes, which are not whole rows of %d elements of "
            "%s: it is truncated or of another format",
            file.name.c_str(),
            ull(file.size),
            d,
            name_of(type));
    layout.n = int64_t(file.size / layout.stride);
    return layout;
}

/// Whether a header of two `Size` fits the size of the file.
template <class Size>
bool parse_bin_header(const File& file, VectorLayout& layout) {
    layout.offset = 2 * sizeof(Size);
    if (file.size < layout.offset) {
        return false;
    }
    const uint64_t n = file.at<Size>(0);
    const uint64_t d = file.at<Size>(sizeof(Size));
    const uint64_t bytes = payload(n, d, layout.type);
    const uint64_t rest = file.size - layout.offset;
    const bool with_distances = layout.type == ElementType::int32 &&
            rest % 2 == 0 && bytes == rest / 2;
    if (bytes != rest && !with_distances) {
        return false;
    }
    check_shape(file, n, d);
    layout.n = int64_t(n);
    layout.d = int64_t(d);
    layout.stride = d * size_of(layout.type);
    return true;
}

VectorLayout parse_bin(const File& file, ElementType type) {
    VectorLayout layout;
    layout.type = type;
    if (parse_bin_header<uint32_t>(file, layout) ||
        parse_bin_header<uint64_t>(file, layout)) {
        return layout;
    }
    FLASHGMM_THROW_FMT(
            "%s has %llu bytes, but says that it holds %u rows of %u elements "
            "of %s: it is truncated or of another format",
            file.name.c_str(),
            ull(file.size),
            file.at<uint32_t>(0),
            file.at<uint32_t>(sizeof(uint32_t)),
            name_of(type));
}

/// What follows `key` in the header of a .npy file, a Python dictionary.
std::string_view npy_value(
        const File& file,
        std::string_view header,
        std::string_view key) {
    const size_t at = header.find(key);
    FLASHGMM_THROW_IF_NOT_FMT(
            at != header.npos,
            "%s: no %.*s in the header of the .npy file",
            file.name.c_str(),
            int(key.size()),
            key.data());
    std::string_view value = header.substr(at + key.size());
    value.remove_prefix(std::min(value.size(), value.find_first_not_of(": ")));
    return value;
}

ElementType npy_type(const File& file, std::string_view header) {
    std::string_view text = npy_value(file, header, "'descr'");
    FLASHGMM_THROW_IF_NOT_FMT(
            text.starts_with('\''),
            "%s holds records, not numbers of one type",
            file.name.c_str());
    text.remove_prefix(1);
    text = text.substr(0, text.find('\''));
    constexpr std::pair<std::string_view, ElementType> kTypes[] = {
            {"<f4", ElementType::float32},
            {"<f8", ElementType::float64},
            {"<f2", ElementType::float16},
            {"|u1", ElementType::uint8},
            {"|i1", ElementType::int8},
            {"<i4", ElementType::int32}};
    for (const auto& [name, type] : kTypes) {
        if (text == name) {
            return type;
        }
    }
    FLASHGMM_THROW_FMT(
            "%s holds elements of type '%.*s'; known are <f4, <f8, <f2, |u1, "
            "|i1 and <i4",
            file.name.c_str(),
            int(std::min<size_t>(text.size(), 16)),
            text.data());
}

void npy_shape(
        const File& file,
        std::string_view header,
        VectorLayout& layout) {
    const std::string_view text = npy_value(file, header, "'shape'");
    const char* at = text.data();
    const char* const end = at + text.size();
    const auto skip = [&](char c) {
        while (at < end && *at == ' ') {
            at++;
        }
        return at < end && *at == c && at++;
    };
    const auto number = [&](uint64_t& value) {
        while (at < end && *at == ' ') {
            at++;
        }
        const auto [stop, error] = std::from_chars(at, end, value);
        at = stop;
        return error == std::errc();
    };
    uint64_t n = 0;
    uint64_t d = 0;
    FLASHGMM_THROW_IF_NOT_FMT(
            skip('(') && number(n) && skip(',') && number(d) &&
                    (skip(','), skip(')')),
            "%s is not a two-dimensional array",
            file.name.c_str());
    check_shape(file, n, d);
    layout.n = int64_t(n);
    layout.d = int64_t(d);
}

VectorLayout parse_npy(const File& file) {
    FLASHGMM_THROW_IF_NOT_FMT(
            file.begins_with("\x93NUMPY"),
            "%s does not begin as a .npy file does",
            file.name.c_str());
    const int version = file.at<uint8_t>(6);
    FLASHGMM_THROW_IF_NOT_FMT(
            version >= 1 && version <= 3,
            "%s is of version %d of the .npy format; known are 1 to 3",
            file.name.c_str(),
            version);
    const uint64_t begin = version == 1 ? 10 : 12;
    const uint64_t length =
            version == 1 ? file.at<uint16_t>(8) : file.at<uint32_t>(8);
    FLASHGMM_THROW_IF_NOT_FMT(
            begin + length <= file.size,
            "%s ends after %llu bytes, inside its header",
            file.name.c_str(),
            ull(file.size));
    const std::string_view header(
            reinterpret_cast<const char*>(file.bytes) + begin, length);
    VectorLayout layout;
    layout.offset = begin + length;
    layout.type = npy_type(file, header);
    FLASHGMM_THROW_IF_NOT_FMT(
            npy_value(file, header, "'fortran_order'").starts_with("False"),
            "%s is in Fortran order; save it with numpy.ascontiguousarray",
            file.name.c_str());
    npy_shape(file, header, layout);
    layout.stride = uint64_t(layout.d) * size_of(layout.type);
    const uint64_t bytes = payload(layout.n, layout.d, layout.type);
    FLASHGMM_THROW_IF_NOT_FMT(
            bytes == file.size - layout.offset,
            "%s has %llu bytes, which do not hold %lld rows of %lld elements "
            "of %s: it is truncated",
            file.name.c_str(),
            ull(file.size),
            static_cast<long long>(layout.n),
            static_cast<long long>(layout.d),
            name_of(layout.type));
    return layout;
}

} // namespace

const char* name_of(ElementType type) {
    switch (type) {
        case ElementType::float32:
            return "float32";
        case ElementType::float64:
            return "float64";
        case ElementType::float16:
            return "float16";
        case ElementType::uint8:
            return "uint8";
        case ElementType::int8:
            return "int8";
        case ElementType::int32:
            return "int32";
    }
    return "?";
}

int64_t size_of(ElementType type) {
    switch (type) {
        case ElementType::float64:
            return 8;
        case ElementType::float32:
        case ElementType::int32:
            return 4;
        case ElementType::float16:
            return 2;
        case ElementType::uint8:
        case ElementType::int8:
            return 1;
    }
    return 0;
}

VectorFormat VectorFormat::of(const std::string& name) {
    constexpr std::pair<std::string_view, VectorFormat> kFormats[] = {
            {".fvecs", {ElementType::float32, true, false}},
            {".bvecs", {ElementType::uint8, true, false}},
            {".ivecs", {ElementType::int32, true, false}},
            {".fbin", {ElementType::float32, false, false}},
            {".f16bin", {ElementType::float16, false, false}},
            {".u8bin", {ElementType::uint8, false, false}},
            {".i8bin", {ElementType::int8, false, false}},
            {".ibin", {ElementType::int32, false, false}},
            {".npy", {ElementType::float32, false, true}}};
    for (const auto& [end, format] : kFormats) {
        if (name.ends_with(end)) {
            return format;
        }
    }
    FLASHGMM_THROW_FMT(
            "%s: the end of the name is none of .fvecs .bvecs .ivecs .fbin "
            ".f16bin .u8bin .i8bin .ibin .npy",
            name.c_str());
}

VectorLayout VectorLayout::parse(
        const std::string& name,
        const uint8_t* bytes,
        uint64_t size) {
    const File file{name, bytes, size};
    FLASHGMM_THROW_IF_NOT_FMT(
            !file.begins_with("version https://git-lfs"),
            "%s is a Git LFS pointer, not the data: run git lfs pull",
            name.c_str());
    const VectorFormat format = VectorFormat::of(name);
    if (format.npy) {
        return parse_npy(file);
    }
    return format.row_headers ? parse_vecs(file, format.type)
                              : parse_bin(file, format.type);
}

} // namespace faiss_flashgmm
