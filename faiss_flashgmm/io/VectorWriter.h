#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <faiss_flashgmm/io/PendingFile.h>
#include <faiss_flashgmm/io/VectorLayout.h>

namespace faiss_flashgmm {

/** Writes rows to a file of one of the formats of VectorLayout, a chunk at a
 * time. The file appears under its name in finish().
 *
 * The end of the name says which format; a .npy file gets the element type
 * given. Errors (Error) name the file, or the value that does not fit.
 */
class VectorWriter {
   public:
    /// @param npy_type     of the elements of a .npy file; others have theirs
    VectorWriter(
            const std::string& path,
            int64_t d,
            ElementType npy_type = ElementType::float32);

    /** Appends rows. Halves are rounded to nearest; integers have to be
     * integral and in range.
     *
     * @param x     size n * d
     */
    void append(int64_t n, const float* x);

    void append(int64_t n, const double* x);

    /// Appends rows of ids, to a format of int32.
    void append(int64_t n, const int64_t* ids);

    void finish();

   private:
    struct CloseFile {
        void operator()(std::FILE* file) const {
            std::fclose(file);
        }
    };

    template <class From>
    void append_any(int64_t n, const From* x);
    template <class T, class From>
    void append_as(int64_t n, const From* x);
    void write(const void* bytes, uint64_t size);
    std::string header() const;

    VectorFormat format_;
    PendingFile pending_;
    std::unique_ptr<std::FILE, CloseFile> file_;
    int64_t n_ = 0;
    int64_t d_;
    std::vector<uint8_t> row_;
};

} // namespace faiss_flashgmm
