#include <faiss_flashgmm/io/PendingFile.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

namespace {

[[noreturn]] void fail(const std::string& path) {
    FLASHGMM_THROW_FMT(
            "cannot write %s: %s", path.c_str(), std::strerror(errno));
}

/// What a file gets that is created in the usual way.
mode_t default_mode() {
    const mode_t mask = umask(0);
    umask(mask);
    return 0666 & ~mask;
}

/// Waits until the bytes of a file are on the disk.
bool flush_to_disk(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    const bool flushed = fsync(fd) == 0;
    const int error = errno;
    close(fd);
    errno = error;
    return flushed;
}

} // namespace

PendingFile::PendingFile(const std::string& path) : path_(path), target_(path) {
    std::error_code error;
    const auto target = std::filesystem::weakly_canonical(path, error);
    struct stat former;
    const bool exists = stat(path.c_str(), &former) == 0;
    if (exists && !S_ISREG(former.st_mode)) {
        direct_ = true;
        temporary_path_ = path;
        return;
    }
    if (!error) {
        target_ = target.string();
    }
    temporary_path_ = target_ + ".partial-XXXXXX";
    const int fd = mkstemp(temporary_path_.data());
    if (fd < 0) {
        fail(path);
    }
    pending_ = true;
    fchmod(fd, exists ? former.st_mode & 07777 : default_mode());
    close(fd);
}

PendingFile::~PendingFile() {
    if (pending_) {
        std::remove(temporary_path_.c_str());
    }
}

void PendingFile::commit() {
    if (direct_) {
        return;
    }
    if (!flush_to_disk(temporary_path_) ||
        std::rename(temporary_path_.c_str(), target_.c_str()) != 0) {
        fail(path_);
    }
    pending_ = false;
}

} // namespace faiss_flashgmm
