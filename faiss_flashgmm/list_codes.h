#pragma once

#include <cstddef>
#include <cstdint>

#include <faiss/IndexIVF.h>
#include <faiss/invlists/BlockInvertedLists.h>

#include <faiss_flashgmm/compat.h>

namespace faiss_flashgmm {

/** The codes in the inverted lists of an index, one at a time, however they
 * are laid out: one after the other, or in the blocks of FastScan.
 *
 * Different lists may be changed by different threads.
 */
class ListCodes {
   public:
    /// Throws if the lists are not of the kind that the index needs.
    explicit ListCodes(const faiss::IndexIVF& ivf);

    size_t code_size() const {
        return code_size_;
    }

    bool in_blocks() const {
        return blocks_;
    }

    /// @return the offset of the entry in its list
    size_t append(
            size_t list,
            idx_t id,
            const uint8_t* code,
            void* inverted_list_context = nullptr);

    /// @param code      output, size code_size()
    void read(size_t list, size_t offset, uint8_t* code) const;

    void write(size_t list, size_t offset, idx_t id, const uint8_t* code);

    void shrink(size_t list, size_t size);

   private:
    uint8_t* block_of(size_t list, size_t offset) const;
    void write_to_block(size_t list, size_t offset, const uint8_t* code);

    faiss::InvertedLists& lists_;
    faiss::BlockInvertedLists* blocks_ = nullptr; ///< null: no blocks
    size_t code_size_;
    size_t packed_size_ = 0; ///< bytes of a code that are interleaved
};

} // namespace faiss_flashgmm
