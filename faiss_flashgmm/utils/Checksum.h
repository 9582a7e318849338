#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace faiss_flashgmm {

/** 64-bit checksum of a stream of bytes, the same for any split into pieces.
 *
 * Guards against accidents, not against intent: each step is a bijection, so
 * a change within one aligned word of 8 bytes is always noticed.
 */
class Checksum {
   public:
    void add(const void* data, size_t size) {
        if (size == 0) { // then data may be null
            return;
        }
        const char* bytes = static_cast<const char*>(data);
        size_ += size;
        if (n_pending_ > 0) {
            const size_t n = std::min(size, sizeof(pending_) - n_pending_);
            std::memcpy(pending_ + n_pending_, bytes, n);
            bytes += n;
            size -= n;
            n_pending_ += n;
            if (n_pending_ < sizeof(pending_)) {
                return;
            }
            mix(pending_);
            n_pending_ = 0;
        }
        for (; size >= sizeof(pending_); size -= sizeof(pending_)) {
            mix(bytes);
            bytes += sizeof(pending_);
        }
        if (size > 0) {
            std::memcpy(pending_, bytes, size);
            n_pending_ = size;
        }
    }

    uint64_t value() const {
        Checksum last = *this;
        std::memset(
                last.pending_ + n_pending_, 0, sizeof(pending_) - n_pending_);
        last.mix(last.pending_);
        last.mix(reinterpret_cast<const char*>(&size_));
        return last.state_;
    }

    uint64_t size() const {
        return size_;
    }

   private:
    void mix(const char* bytes) {
        uint64_t word;
        std::memcpy(&word, bytes, sizeof(word));
        state_ = (state_ ^ word) * 0x9E3779B97F4A7C15u; // odd: a bijection
        state_ ^= state_ >> 32;
    }

    uint64_t state_ = 0x243F6A8885A308D3u; // digits of pi
    uint64_t size_ = 0;
    char pending_[8] = {};
    size_t n_pending_ = 0;
};

} // namespace faiss_flashgmm
