#include <faiss_flashgmm/index_io.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/index_container.h>
#include <faiss_flashgmm/io/PendingFile.h>
#include <faiss_flashgmm/plain_message.h>
#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

namespace {

/// Adds the name of the file to what went wrong in it.
template <class Read>
auto with_name(const std::string& name, const Read& read) {
    try {
        return read();
    } catch (const faiss::FaissException& error) {
        FAISS_THROW_FMT("%s: %s", name.c_str(), plain_message(error).c_str());
    }
}

/// Unlike that of a FileIOWriter, its end reports bytes that found no place.
void write_file(const faiss::Index& index, const std::string& name) {
    const auto close = [](FILE* file) { return std::fclose(file); };
    std::unique_ptr<FILE, decltype(close)> file(
            std::fopen(name.c_str(), "wb"), close);
    FAISS_THROW_IF_NOT_FMT(
            file, "cannot write %s: %s", name.c_str(), strerror(errno));
    faiss::FileIOWriter writer(file.get());
    writer.name = name;
    write_container(index, writer);
    FAISS_THROW_IF_NOT_FMT(
            std::fclose(file.release()) == 0,
            "cannot write %s: %s",
            name.c_str(),
            strerror(errno));
}

} // namespace

void write_index(const faiss::Index* index, const char* fname) {
    FAISS_THROW_IF_NOT_MSG(index, "there is no index");
    try {
        PendingFile file(fname);
        write_file(*index, file.temporary_path());
        file.commit();
    } catch (const Error& error) {
        FAISS_THROW_MSG(error.what());
    }
}

void write_index(const faiss::Index* index, faiss::IOWriter* writer) {
    FAISS_THROW_IF_NOT_MSG(index && writer, "there is no index, or no writer");
    write_container(*index, *writer);
}

std::unique_ptr<faiss::Index> read_index(const char* fname, int io_flags) {
    faiss::FileIOReader reader(fname);
    return with_name(fname, [&] {
        auto index = read_container(reader, io_flags);
        FAISS_THROW_IF_NOT_MSG(
                std::fgetc(reader.f) == EOF, "more bytes follow the index");
        return index;
    });
}

std::unique_ptr<faiss::Index> read_index(
        faiss::IOReader* reader,
        int io_flags) {
    FAISS_THROW_IF_NOT_MSG(reader, "there is no reader");
    return with_name(reader->name.empty() ? "index" : reader->name, [&] {
        return read_container(*reader, io_flags);
    });
}

bool is_index_file(const char* fname) {
    faiss::FileIOReader reader(fname);
    return has_magic(reader);
}

} // namespace faiss_flashgmm
