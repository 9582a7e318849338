#include <faiss_flashgmm/io/PendingFile.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <sys/stat.h>
#include <unistd.h>

#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

namespace {

/// What a file gets that is created in the usual way; mkstemp gives 0600.
void give_default_mode(int fd) {
    const mode_t mask = umask(0);
    umask(mask);
    fchmod(fd, 0666 & ~mask);
}

} // namespace

PendingFile::PendingFile(const std::string& path)
        : path_(path), temporary_path_(path + ".partial-XXXXXX") {
    const int fd = mkstemp(temporary_path_.data());
    FLASHGMM_THROW_IF_NOT_FMT(
            fd >= 0,
            "cannot write %s: %s",
            path.c_str(),
            std::strerror(errno));
    give_default_mode(fd);
    close(fd);
}

PendingFile::~PendingFile() {
    if (!temporary_path_.empty()) {
        std::remove(temporary_path_.c_str());
    }
}

void PendingFile::commit() {
    FLASHGMM_THROW_IF_NOT_FMT(
            std::rename(temporary_path_.c_str(), path_.c_str()) == 0,
            "cannot write %s: %s",
            path_.c_str(),
            std::strerror(errno));
    temporary_path_.clear();
}

} // namespace faiss_flashgmm
