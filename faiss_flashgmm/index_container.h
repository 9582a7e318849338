#pragma once

#include <memory>

#include <faiss/Index.h>
#include <faiss/impl/io.h>

namespace faiss_flashgmm {

/// The bytes of an index in a file of write_index().
void write_container(const faiss::Index& index, faiss::IOWriter& writer);

/** @param as_stock  leave the parts of the index what FAISS made of them:
 *                   stock types, whose lists hold the copies
 */
std::unique_ptr<faiss::Index> read_container(
        faiss::IOReader& reader,
        int io_flags = 0,
        bool as_stock = false);

/// Reads the first bytes: whether a container begins there.
bool has_magic(faiss::IOReader& reader);

} // namespace faiss_flashgmm
