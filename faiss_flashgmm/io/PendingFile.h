#pragma once

#include <string>

namespace faiss_flashgmm {

/** A file that appears under its name when it is complete, or not at all.
 *
 * It is written under temporary_path(), beside its name. commit() gives it the
 * name, replacing a former file and keeping that one's permissions; without it
 * the destructor deletes it. A symbolic link stays one: the file that it points
 * to is replaced. What is no regular file, such as a pipe or /dev/stdout, is
 * written to directly.
 */
class PendingFile {
   public:
    /// Throws Error if the directory of path cannot be written to.
    explicit PendingFile(const std::string& path);
    ~PendingFile();

    PendingFile(const PendingFile&) = delete;
    PendingFile& operator=(const PendingFile&) = delete;

    const std::string& path() const {
        return path_;
    }
    const std::string& temporary_path() const {
        return temporary_path_;
    }

    /// Close the file before. Throws Error if its bytes do not reach the disk
    /// or it cannot take its name.
    void commit();

   private:
    std::string path_;   ///< as given
    std::string target_; ///< behind symbolic links
    std::string temporary_path_;
    bool direct_ = false; ///< target_ is written to directly
    bool pending_ = false;
};

} // namespace faiss_flashgmm
