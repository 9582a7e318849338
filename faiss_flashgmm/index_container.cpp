#include <faiss_flashgmm/index_container.h>

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include <faiss/IndexReplicas.h>
#include <faiss/IndexShards.h>
#include <faiss/impl/FaissAssert.h>
#include <faiss/index_io.h>

#include <faiss_flashgmm/Record.h>
#include <faiss_flashgmm/compat.h>
#include <faiss_flashgmm/index_sections.h>
#include <faiss_flashgmm/utils/Checksum.h>

namespace faiss_flashgmm {

namespace {

// The layout (docs/files.md): magic, format version, size and checksum of the
// header, the header, then the stream of faiss::write_index, or the same over
// again for each part of IndexShards and IndexReplicas.

constexpr char kMagic[9] = "FlashGMM";
constexpr size_t kMagicSize = 8;

/// Raised when a reader of the version before would misread a file.
constexpr uint64_t kFormatVersion = 1;

/// The stream begins at a multiple of this, as seen from the magic.
constexpr size_t kAlignment = 64;

/// Bytes read at once, and so taken before they are known to exist.
constexpr size_t kReadSize = 16 << 20;

/// What the container is made of.
constexpr char kStream[] = "index";
constexpr char kShards[] = "shards";
constexpr char kReplicas[] = "replicas";

struct Header {
    Record container;
    std::vector<Section> sections;
};

template <class Threaded>
struct ThreadedAccess : Threaded {
    static bool is_threaded(const Threaded& index) {
        return index.*&ThreadedAccess::isThreaded_;
    }
};

/*************************************************************************
 * Writing
 *************************************************************************/

/// Takes the checksum of what is written, to `out` or to nowhere.
struct ChecksumWriter : faiss::IOWriter {
    faiss::IOWriter* out;
    Checksum checksum;

    explicit ChecksumWriter(faiss::IOWriter* out) : out(out) {
        name = out ? out->name : "";
    }

    size_t operator()(const void* data, size_t size, size_t n) override {
        checksum.add(data, size * n);
        return out ? (*out)(data, size, n) : n;
    }
};

void write_bytes(faiss::IOWriter& writer, const void* data, size_t size) {
    FAISS_THROW_IF_NOT_FMT(
            writer(data, 1, size) == size,
            "write error in %s: %s",
            writer.name.c_str(),
            strerror(errno));
}

void write_header(faiss::IOWriter& writer, const Header& header) {
    std::string bytes;
    header.container.append_to(bytes);
    append_size(bytes, header.sections.size());
    for (const Section& section : header.sections) {
        append_string(bytes, section.kind);
        append_string(bytes, section.path);
        section.record.append_to(bytes);
    }
    const size_t before = kMagicSize + 3 * sizeof(uint64_t);
    bytes.resize(
            (before + bytes.size() + kAlignment - 1) / kAlignment * kAlignment -
            before);

    Checksum checksum;
    checksum.add(bytes.data(), bytes.size());
    std::string prefix(kMagic, kMagicSize);
    append_size(prefix, kFormatVersion);
    append_size(prefix, bytes.size());
    append_size(prefix, checksum.value());
    write_bytes(writer, prefix.data(), prefix.size());
    write_bytes(writer, bytes.data(), bytes.size());
}

template <class Threaded>
bool write_parts_of(
        const faiss::Index& index,
        const char* kind,
        faiss::IOWriter& writer) {
    auto* threaded = dynamic_cast<const Threaded*>(&index);
    if (!threaded) {
        return false;
    }
    Header header;
    header.container.set("kind", std::string(kind));
    header.container.set("d", int64_t(index.d));
    header.container.set("count", int64_t(threaded->count()));
    header.container.set(
            "threaded",
            int64_t(ThreadedAccess<Threaded>::is_threaded(*threaded)));
    if constexpr (std::is_same_v<Threaded, faiss::IndexShards>) {
        header.container.set(
                "successive_ids", int64_t(threaded->successive_ids));
    }
    write_header(writer, header);
    for (int i = 0; i < threaded->count(); i++) {
        write_container(*threaded->at(i), writer);
    }
    return true;
}

/*************************************************************************
 * Reading
 *************************************************************************/

void read_bytes(faiss::IOReader& reader, void* data, size_t size) {
    const size_t n = reader(data, 1, size);
    FAISS_THROW_IF_NOT_FMT(
            n == size,
            "the file ends %zu bytes early: it was cut off",
            size - n);
}

/// Grows as bytes arrive, so that a wrong size takes no memory.
template <class Bytes>
void read_growing(faiss::IOReader& reader, uint64_t size, Bytes& bytes) {
    while (bytes.size() < size) {
        const size_t n = std::min<uint64_t>(kReadSize, size - bytes.size());
        bytes.resize(bytes.size() + n);
        read_bytes(reader, &bytes[bytes.size() - n], n);
    }
}

std::string printable(const std::string& bytes) {
    std::string shown;
    for (unsigned char c : bytes) {
        shown += c >= ' ' && c < 127 ? char(c) : '?';
    }
    return shown;
}

Header read_header(faiss::IOReader& reader) {
    std::string magic(kMagicSize, '\0');
    magic.resize(reader(magic.data(), 1, kMagicSize));
    FAISS_THROW_IF_NOT_FMT(
            magic == kMagic,
            "not a file of faiss_flashgmm::write_index: it begins with '%s' "
            "(files of FAISS itself are read by faiss::read_index)",
            printable(magic).c_str());
    uint64_t version, size, checksum;
    read_bytes(reader, &version, sizeof(version));
    FAISS_THROW_IF_NOT_FMT(
            version == kFormatVersion,
            "the file has format %zu, this faiss_flashgmm reads format %zu: it "
            "was written by a newer one",
            size_t(version),
            size_t(kFormatVersion));
    read_bytes(reader, &size, sizeof(size));
    read_bytes(reader, &checksum, sizeof(checksum));
    std::string bytes;
    read_growing(reader, size, bytes);
    Checksum actual;
    actual.add(bytes.data(), bytes.size());
    FAISS_THROW_IF_NOT_MSG(
            actual.value() == checksum,
            "the header was changed: its checksum is wrong");

    Header header;
    ByteReader in(bytes);
    header.container = Record::read_from(in);
    for (uint64_t n = in.read_size(); n > 0; n--) {
        Section section;
        section.kind = in.read_string();
        section.path = in.read_string();
        section.record = Record::read_from(in);
        header.sections.push_back(std::move(section));
    }
    return header;
}

int64_t number(const Record& record, const char* name) {
    int64_t value;
    FAISS_THROW_IF_NOT_FMT(
            record.get(name, value), "the header lacks '%s'", name);
    return value;
}

void check_stream(const Checksum& actual, const Record& container) {
    FAISS_THROW_IF_NOT_MSG(
            int64_t(actual.value()) == number(container, "stream_checksum"),
            "the content was changed: its checksum is wrong");
}

/// Reads the stream at `reader`. Its checksum must be known to be right, as
/// FAISS trusts what it reads.
std::unique_ptr<faiss::Index> read_checked_stream(
        const Record& container,
        faiss::IOReader& reader,
        int io_flags) {
    try {
        return std::unique_ptr<faiss::Index>(
                faiss::read_index(&reader, io_flags));
    } catch (const std::exception& error) {
        std::string version = "unknown";
        container.get("faiss_version", version);
        FAISS_THROW_FMT(
                "FAISS cannot read the index, which was written with FAISS %s: "
                "%s",
                version.c_str(),
                error.what());
    }
}

void check_end(uint64_t expected, uint64_t read) {
    FAISS_THROW_IF_NOT_FMT(
            expected == read,
            "FAISS read %zu bytes of an index of %zu",
            size_t(read),
            size_t(expected));
}

std::unique_ptr<faiss::Index> read_file_stream(
        const Record& container,
        uint64_t size,
        uint64_t file_size,
        faiss::FileIOReader& reader,
        int io_flags) {
    const off_t begin = ftello(reader.f);
    const uint64_t left = file_size - std::min<uint64_t>(begin, file_size);
    FAISS_THROW_IF_NOT_FMT(
            size <= left,
            "the file ends %zu bytes early: it was cut off",
            size_t(size - left));
    if (!(io_flags & faiss::IO_FLAG_SKIP_IVF_DATA)) { // so also without MMAP
        Checksum checksum;
        std::vector<char> buffer(std::min<uint64_t>(size, kReadSize));
        while (checksum.size() < size) {
            const size_t n =
                    std::min<uint64_t>(buffer.size(), size - checksum.size());
            read_bytes(reader, buffer.data(), n);
            checksum.add(buffer.data(), n);
        }
        check_stream(checksum, container);
        FAISS_THROW_IF_NOT_FMT(
                fseeko(reader.f, begin, SEEK_SET) == 0,
                "cannot go back in the file: %s",
                strerror(errno));
    }
    auto index = read_checked_stream(container, reader, io_flags);
    check_end(size, ftello(reader.f) - begin);
    return index;
}

std::unique_ptr<faiss::Index> read_memory_stream(
        const Record& container,
        uint64_t size,
        faiss::VectorIOReader& reader,
        int io_flags) {
    const size_t begin = reader.rp;
    const size_t left = reader.data.size() - begin;
    FAISS_THROW_IF_NOT_FMT(
            size <= left,
            "the bytes end %zu early: they were cut off",
            size_t(size - left));
    Checksum checksum;
    checksum.add(reader.data.data() + begin, size);
    check_stream(checksum, container);
    auto index = read_checked_stream(container, reader, io_flags);
    check_end(size, reader.rp - begin);
    return index;
}

std::unique_ptr<faiss::Index> read_stream(
        const Record& container,
        faiss::IOReader& reader,
        int io_flags) {
    const auto size = uint64_t(number(container, "stream_bytes"));
    struct stat status;
    auto* file = dynamic_cast<faiss::FileIOReader*>(&reader);
    if (file && fstat(fileno(file->f), &status) == 0 &&
        S_ISREG(status.st_mode)) {
        return read_file_stream(
                container, size, status.st_size, *file, io_flags);
    }
    if (auto* memory = dynamic_cast<faiss::VectorIOReader*>(&reader)) {
        return read_memory_stream(container, size, *memory, io_flags);
    }
    faiss::VectorIOReader memory;
    memory.name = reader.name;
    read_growing(reader, size, memory.data);
    return read_memory_stream(container, size, memory, io_flags);
}

template <class Threaded>
std::unique_ptr<faiss::Index> read_parts(
        const Record& container,
        faiss::IOReader& reader,
        int io_flags,
        bool as_stock) {
    auto index = std::make_unique<Threaded>(
            int(number(container, "d")), bool(number(container, "threaded")));
    if constexpr (std::is_same_v<Threaded, faiss::IndexShards>) {
        index->successive_ids = number(container, "successive_ids");
    }
    index->FAISS_FLASHGMM_OWN_MEMBERS = true;
    for (int64_t i = 0; i < number(container, "count"); i++) {
        auto part = read_container(reader, io_flags, as_stock);
        index->addIndex(part.get()); // throws if it does not fit
        part.release();
    }
    return index;
}

} // namespace

void write_container(const faiss::Index& index, faiss::IOWriter& writer) {
    if (write_parts_of<faiss::IndexShards>(index, kShards, writer) ||
        write_parts_of<faiss::IndexReplicas>(index, kReplicas, writer)) {
        return;
    }
    // The header needs the size and the checksum of what follows: everything
    // is serialized twice, the first time to nowhere.
    ChecksumWriter dry_run(nullptr), stream(&writer);
    faiss::write_index(&index, &dry_run);
    const Checksum& checksum = dry_run.checksum;

    Header header;
    header.sections = sections_of(index);
    header.container.set("kind", std::string(kStream));
    header.container.set("stream_bytes", int64_t(checksum.size()));
    header.container.set("stream_checksum", int64_t(checksum.value()));
    header.container.set(
            "faiss_version",
            std::to_string(FAISS_VERSION_MAJOR) + "." +
                    std::to_string(FAISS_VERSION_MINOR) + "." +
                    std::to_string(FAISS_VERSION_PATCH));
    write_header(writer, header);
    faiss::write_index(&index, &stream);
    FAISS_THROW_IF_NOT_MSG(
            stream.checksum.value() == checksum.value(),
            "the index was changed while it was written");
}

std::unique_ptr<faiss::Index> read_container(
        faiss::IOReader& reader,
        int io_flags,
        bool as_stock) {
    const Header header = read_header(reader);
    std::string kind;
    header.container.get("kind", kind);
    std::unique_ptr<faiss::Index> index;
    if (kind == kStream) {
        index = read_stream(header.container, reader, io_flags);
    } else if (kind == kShards) {
        index = read_parts<faiss::IndexShards>(
                header.container, reader, io_flags, as_stock);
    } else if (kind == kReplicas) {
        index = read_parts<faiss::IndexReplicas>(
                header.container, reader, io_flags, as_stock);
    } else {
        FAISS_THROW_FMT("this version does not know a '%s'", kind.c_str());
    }
    if (!as_stock) {
        restore_sections(index, header.sections);
    }
    return index;
}

bool has_magic(faiss::IOReader& reader) {
    char magic[kMagicSize];
    return reader(magic, 1, kMagicSize) == kMagicSize &&
            std::memcmp(magic, kMagic, kMagicSize) == 0;
}

} // namespace faiss_flashgmm
