#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// n rows of d values, row-major.
template <class T>
struct Matrix {
    int64_t n = 0;
    int64_t d = 0;
    std::vector<T> values; ///< size n * d

    const T* row(int64_t i) const {
        return values.data() + i * d;
    }
};

/** Vectors as floats, from a file whose name ends in
 *
 * - .f16bin or .u8bin: uint32 n, uint32 d, then n * d float16 or uint8
 * - .bvecs: for every vector int32 d, then d uint8
 *
 * All little-endian. Throws faiss_flashgmm::Error naming the file when it
 * cannot be read or its size does not fit its header.
 */
Matrix<float> read_vectors(const std::string& path);

/// Ids from an .ivecs file: for every row int32 d, then d int32.
Matrix<int32_t> read_ids(const std::string& path);
