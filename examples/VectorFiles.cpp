#include "VectorFiles.h"

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>

#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/half.h>

namespace {

static_assert(std::endian::native == std::endian::little);

std::vector<char> read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    FLASHGMM_THROW_IF_NOT_FMT(file, "cannot open %s", path.c_str());
    return {std::istreambuf_iterator<char>(file), {}};
}

/// A file with one header: uint32 n, uint32 d, then n * d values.
template <class T>
Matrix<T> read_bin(const std::string& path) {
    const std::vector<char> bytes = read_file(path);
    uint32_t header[2] = {};
    FLASHGMM_THROW_IF_NOT_FMT(
            bytes.size() >= sizeof(header),
            "%s has %zu bytes, too few for a header",
            path.c_str(),
            bytes.size());
    std::memcpy(header, bytes.data(), sizeof(header));
    const size_t payload = bytes.size() - sizeof(header);
    FLASHGMM_THROW_IF_NOT_FMT(
            payload % sizeof(T) == 0 &&
                    payload / sizeof(T) == uint64_t(header[0]) * header[1],
            "%s has %zu bytes, which do not hold %u x %u values",
            path.c_str(),
            bytes.size(),
            header[0],
            header[1]);
    Matrix<T> rows{header[0], header[1], std::vector<T>(payload / sizeof(T))};
    if (payload > 0) {
        std::memcpy(rows.values.data(), bytes.data() + sizeof(header), payload);
    }
    return rows;
}

/// A file with a header for every row: int32 d, then d values.
template <class T>
Matrix<T> read_vecs(const std::string& path) {
    const std::vector<char> bytes = read_file(path);
    int32_t d = 0;
    FLASHGMM_THROW_IF_NOT_FMT(
            bytes.size() >= sizeof(d),
            "%s has %zu bytes, too few for a header",
            path.c_str(),
            bytes.size());
    std::memcpy(&d, bytes.data(), sizeof(d));
    const size_t row_bytes = sizeof(d) + sizeof(T) * size_t(d);
    FLASHGMM_THROW_IF_NOT_FMT(
            d > 0 && bytes.size() % row_bytes == 0,
            "%s has %zu bytes, which are no rows of %d values",
            path.c_str(),
            bytes.size(),
            d);
    const size_t n = bytes.size() / row_bytes;
    Matrix<T> rows{int64_t(n), d, std::vector<T>(n * d)};
    for (size_t i = 0; i < n; i++) {
        const char* row = bytes.data() + i * row_bytes;
        FLASHGMM_THROW_IF_NOT_FMT(
                std::memcmp(row, &d, sizeof(d)) == 0,
                "row %zu of %s is not of %d values as the first one is",
                i,
                path.c_str(),
                d);
        std::memcpy(
                rows.values.data() + i * d,
                row + sizeof(d),
                sizeof(T) * size_t(d));
    }
    return rows;
}

template <class T, class Convert>
Matrix<float> to_float(const Matrix<T>& in, Convert convert) {
    Matrix<float> out{in.n, in.d, {}};
    out.values.reserve(in.values.size());
    for (const T value : in.values) {
        out.values.push_back(convert(value));
    }
    return out;
}

float from_byte(uint8_t byte) {
    return byte;
}

} // namespace

Matrix<float> read_vectors(const std::string& path) {
    if (path.ends_with(".f16bin")) {
        return to_float(read_bin<uint16_t>(path), faiss_flashgmm::half_to_float);
    }
    if (path.ends_with(".u8bin")) {
        return to_float(read_bin<uint8_t>(path), from_byte);
    }
    FLASHGMM_THROW_IF_NOT_FMT(
            path.ends_with(".bvecs"),
            "%s is neither .f16bin nor .u8bin nor .bvecs",
            path.c_str());
    return to_float(read_vecs<uint8_t>(path), from_byte);
}

Matrix<int32_t> read_ids(const std::string& path) {
    return read_vecs<int32_t>(path);
}
