#include <faiss_flashgmm/list_codes.h>

#include <algorithm>
#include <vector>

#include <faiss/IndexIVFFastScan.h>
#include <faiss/impl/FaissAssert.h>

namespace faiss_flashgmm {

namespace {

/// Where FastScan keeps the two halves of a byte.
struct NibblePlace {
    size_t low; ///< the high half is 16 bytes further
    int shift;
};

/** A block holds `block` codes, in groups of 32: for each byte of the codes
 * and each group, 16 bytes of low halves and 16 of high ones. The functions of
 * FAISS for a single code (pq4_set_packed_element) know one group only.
 */
NibblePlace place_of(size_t i, size_t byte, size_t block) {
    const size_t in_half = i % 16;
    const size_t column = in_half < 8 ? 2 * in_half : 2 * (in_half - 8) + 1;
    return {byte * block + i / 32 * 32 + column, i % 32 < 16 ? 0 : 4};
}

void set_half(uint8_t& byte, uint8_t half, int shift) {
    byte = uint8_t((byte & ~(15 << shift)) | (half << shift));
}

} // namespace

ListCodes::ListCodes(const faiss::IndexIVF& ivf)
        : lists_(*ivf.invlists), code_size_(ivf.code_size) {
    if (auto* fast_scan = dynamic_cast<const faiss::IndexIVFFastScan*>(&ivf)) {
        blocks_ = dynamic_cast<faiss::BlockInvertedLists*>(ivf.invlists);
        FAISS_THROW_IF_NOT_MSG(
                blocks_ && blocks_->n_per_block == size_t(fast_scan->bbs),
                "the inverted lists are not those of a FastScan index");
        packed_size_ = fast_scan->M2 / 2;
    }
}

size_t ListCodes::append(
        size_t list,
        idx_t id,
        const uint8_t* code,
        [[maybe_unused]] void* inverted_list_context) {
    if (!blocks_) {
        return lists_.add_entry(
                list,
                id,
                code FAISS_FLASHGMM_LISTS_CONTEXT(inverted_list_context));
    }
    const size_t offset = lists_.list_size(list);
    lists_.resize(list, offset + 1);
    blocks_->ids[list][offset] = id;
    write_to_block(list, offset, code);
    return offset;
}

void ListCodes::read(size_t list, size_t offset, uint8_t* code) const {
    if (!blocks_) {
        faiss::InvertedLists::ScopedCodes stored(&lists_, list, offset);
        std::copy_n(stored.get(), code_size_, code);
        return;
    }
    const size_t n = blocks_->n_per_block, i = offset % n;
    const uint8_t* block = block_of(list, offset);
    for (size_t byte = 0; byte < packed_size_; byte++) {
        const NibblePlace place = place_of(i, byte, n);
        code[byte] =
                uint8_t((block[place.low] >> place.shift & 15) |
                        (block[place.low + 16] >> place.shift & 15) << 4);
    }
    const size_t rest = code_size_ - packed_size_;
    std::copy_n(block + packed_size_ * n + i * rest, rest, code + packed_size_);
}

void ListCodes::write(
        size_t list,
        size_t offset,
        idx_t id,
        const uint8_t* code) {
    if (!blocks_) {
        lists_.update_entry(list, offset, id, code);
        return;
    }
    blocks_->ids[list][offset] = id;
    write_to_block(list, offset, code);
}

void ListCodes::shrink(size_t list, size_t size) {
    if (blocks_) {
        // FAISS adds to what it expects to be zero.
        const std::vector<uint8_t> zero(code_size_);
        const size_t n = blocks_->n_per_block;
        const size_t end =
                std::min(lists_.list_size(list), (size + n - 1) / n * n);
        for (size_t i = size; i < end; i++) {
            write_to_block(list, i, zero.data());
        }
    }
    lists_.resize(list, size);
}

uint8_t* ListCodes::block_of(size_t list, size_t offset) const {
    return blocks_->codes[list].data() +
            offset / blocks_->n_per_block * blocks_->block_size;
}

void ListCodes::write_to_block(
        size_t list,
        size_t offset,
        const uint8_t* code) {
    const size_t n = blocks_->n_per_block, i = offset % n;
    uint8_t* block = block_of(list, offset);
    for (size_t byte = 0; byte < packed_size_; byte++) {
        const NibblePlace place = place_of(i, byte, n);
        set_half(block[place.low], code[byte] & 15, place.shift);
        set_half(block[place.low + 16], code[byte] >> 4, place.shift);
    }
    const size_t rest = code_size_ - packed_size_;
    std::copy_n(code + packed_size_, rest, block + packed_size_ * n + i * rest);
}

} // namespace faiss_flashgmm
