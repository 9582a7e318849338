#pragma once

#include <memory>

#include <faiss/Index.h>
#include <faiss/impl/io.h>

namespace faiss_flashgmm {

/** Writes an index with all that multi-assign indexes have beside their FAISS
 * type: policy, mixture, training options, counts (docs/files.md).
 *
 * Anything faiss::write_index can write, with multi-assign indexes,
 * IndexUniqueIds and IndexFlatGMM anywhere inside; and IndexShards and
 * IndexReplicas of such, as the outermost part. What faiss::write_index leaves
 * out of an IVF index (parallel_mode, max_codes) is left out here, too.
 *
 * The file appears under its name when it is complete: an exception
 * (faiss::FaissException) leaves what was there before.
 */
void write_index(const faiss::Index* index, const char* fname);

/// The same to a writer, which gets all or an exception.
void write_index(const faiss::Index* index, faiss::IOWriter* writer);

/** Reads what write_index() wrote.
 *
 * A file that is cut off, changed, written by a newer version or not by
 * write_index() at all is refused with a faiss::FaissException that says so.
 * Memory is taken only for what is there.
 *
 * @param io_flags  of faiss::read_index. With IO_FLAG_MMAP the inverted lists
 *                  stay in the file, and their bytes are not checked.
 */
std::unique_ptr<faiss::Index> read_index(const char* fname, int io_flags = 0);

/// The same from a reader, which is left after the last byte of the index.
/// Unless it reads a file or a vector, the bytes are held in memory first.
std::unique_ptr<faiss::Index> read_index(
        faiss::IOReader* reader,
        int io_flags = 0);

/// Whether a file is one of write_index(). Throws faiss::FaissException if it
/// cannot be opened.
bool is_index_file(const char* fname);

} // namespace faiss_flashgmm
