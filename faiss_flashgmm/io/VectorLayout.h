#pragma once

#include <cstdint>
#include <string>

namespace faiss_flashgmm {

enum class ElementType { float32, float64, float16, uint8, int8, int32 };

const char* name_of(ElementType type);
int64_t size_of(ElementType type); ///< bytes

/// What the end of a file's name says about its format.
struct VectorFormat {
    ElementType type = ElementType::float32; ///< unless it is .npy
    bool row_headers = false;                ///< d, as int32, before every row
    bool npy = false; ///< says in its header which type it holds

    /// Throws Error if the end of the name is none of those below.
    static VectorFormat of(const std::string& name);
};

/** Where the values of n rows of d elements lie in a file.
 *
 * Formats, told apart by the end of the name; all little-endian:
 *
 * - .fvecs .bvecs .ivecs: each row is int32 d, then d float32, uint8 or int32
 *   (texmex)
 * - .fbin .f16bin .u8bin .i8bin .ibin: n and d as uint32, or both as uint64,
 *   then n * d float32, float16, uint8, int8 or int32 (big-ann-benchmarks).
 *   After the n * d ids of an .ibin file there may be as many float32
 *   distances; they are not looked at.
 * - .npy: versions 1 to 3, two-dimensional, C order (NumPy)
 */
struct VectorLayout {
    int64_t n = 0;
    int64_t d = 0;
    ElementType type = ElementType::float32;
    uint64_t offset = 0; ///< bytes before the first element of the first row
    uint64_t stride = 0; ///< bytes from one row to the next
    bool row_headers = false; ///< d is repeated, as int32, before every row

    /** Throws Error, naming the file and what is wrong with it, unless its
     * size is exactly what its header says.
     *
     * @param name      of the file: its end says which format, and errors
     *                  quote it
     * @param bytes     the file, size `size`
     */
    static VectorLayout parse(
            const std::string& name,
            const uint8_t* bytes,
            uint64_t size);
};

} // namespace faiss_flashgmm
