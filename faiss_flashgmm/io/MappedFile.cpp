#include <faiss_flashgmm/io/MappedFile.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

namespace {

struct Descriptor {
    int fd;
    ~Descriptor() {
        if (fd >= 0) {
            close(fd);
        }
    }
};

} // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
    const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    FLASHGMM_THROW_IF_NOT_FMT(
            file.fd >= 0,
            "cannot open %s: %s",
            path.c_str(),
            std::strerror(errno));
    struct stat status;
    FLASHGMM_THROW_IF_NOT_FMT(
            fstat(file.fd, &status) == 0,
            "cannot read %s: %s",
            path.c_str(),
            std::strerror(errno));
    FLASHGMM_THROW_IF_NOT_FMT(
            S_ISREG(status.st_mode), "%s is not a regular file", path.c_str());
    size_ = uint64_t(status.st_size);
    if (size_ == 0) {
        return; // nothing that could be mapped
    }
    void* const memory =
            mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
    FLASHGMM_THROW_IF_NOT_FMT(
            memory != MAP_FAILED,
            "cannot map the %llu bytes of %s: %s",
            static_cast<unsigned long long>(size_),
            path.c_str(),
            std::strerror(errno));
    data_ = static_cast<const uint8_t*>(memory);
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) {
        munmap(const_cast<uint8_t*>(data_), size_);
    }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
        : path_(std::move(other.path_)),
          data_(std::exchange(other.data_, nullptr)),
          size_(std::exchange(other.size_, 0)) {}

} // namespace faiss_flashgmm
