#pragma once

#include <cstdint>
#include <string>

namespace faiss_flashgmm {

/** A file mapped into memory, read only.
 *
 * Pages are read when they are touched, and are no memory of the process. A
 * file that another process shortens meanwhile ends the program (SIGBUS).
 */
class MappedFile {
   public:
    /// Throws Error naming the file if it is no readable regular file.
    explicit MappedFile(const std::string& path);
    ~MappedFile();

    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&&) = delete;
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    const uint8_t* data() const {
        return data_;
    }
    uint64_t size() const {
        return size_;
    }
    const std::string& path() const {
        return path_;
    }

   private:
    std::string path_;
    const uint8_t* data_ = nullptr;
    uint64_t size_ = 0;
};

} // namespace faiss_flashgmm
