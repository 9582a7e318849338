#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <faiss_flashgmm/em/RowSource.h>
#include <faiss_flashgmm/io/MappedFile.h>
#include <faiss_flashgmm/io/VectorLayout.h>

namespace faiss_flashgmm {

/** The rows of a mapped file of one of the formats of VectorLayout.
 *
 * Nothing but the rows being read is in memory. Rows without headers
 * of float32, float16, uint8 and int8 are read in place and as they are; others
 * are converted to floats a chunk at a time.
 */
class VectorFile : public RowSource {
   public:
    /// Throws Error, naming the file, if it cannot be read or is not sound.
    explicit VectorFile(const std::string& path);

    int64_t size() const override {
        return layout_.n;
    }
    int64_t dim() const override {
        return layout_.d;
    }
    Rows read(int64_t begin, int64_t count) override;

    /** Rows [begin, begin + count) as they are stored, without conversion.
     *
     * @param out   size count * dim(); T is int32_t for .ivecs and .ibin,
     *              float for .fvecs, uint8_t for .bvecs and so on
     */
    template <class T>
    void read_as(int64_t begin, int64_t count, T* out) const;

    const VectorLayout& layout() const {
        return layout_;
    }
    const std::string& path() const {
        return file_.path();
    }

   private:
    const uint8_t* row(int64_t i) const;
    void check_range(int64_t begin, int64_t count) const;

    MappedFile file_;
    VectorLayout layout_;
    std::vector<float> chunk_;
};

/// n rows of d numbers, row-major.
template <class T>
struct Matrix {
    int64_t n = 0;
    int64_t d = 0;
    std::vector<T> values; ///< size n * d

    const T* row(int64_t i) const {
        return values.data() + i * d;
    }
};

/// All rows of a source. Throws OutOfMemory if they do not fit.
Matrix<float> read_all(RowSource& source);

} // namespace faiss_flashgmm
