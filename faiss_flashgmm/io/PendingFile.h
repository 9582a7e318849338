#pragma once

#include <string>

namespace faiss_flashgmm {

/** A file that appears under its name when it is complete, or not at all.
 *
 * It is written under temporary_path(), beside its name. commit() gives it the
 * name, replacing a former file; without it the destructor deletes it.
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

    /// Throws Error if the file cannot take its name. Close it before.
    void commit();

   private:
    std::string path_;
    std::string temporary_path_; ///< empty once committed
};

} // namespace faiss_flashgmm
