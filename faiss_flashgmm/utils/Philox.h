#pragma once

#include <array>
#include <cstdint>

namespace faiss_flashgmm {

/** Philox4x32-10, a counter-based random generator (Salmon et al., "Parallel
 * random numbers: as easy as 1, 2, 3", SC 2011).
 *
 * The numbers depend on (seed, stream, position) alone, so that every backend
 * draws the same ones.
 */
class Philox {
   public:
    using Block = std::array<uint32_t, 4>;

    explicit Philox(uint64_t seed, uint64_t stream = 0)
            : key_{uint32_t(seed), uint32_t(seed >> 32)}, stream_(stream) {}

    /// The block of four numbers at a position of the stream.
    Block block(uint64_t position) const {
        Block counter = {
                uint32_t(position),
                uint32_t(position >> 32),
                uint32_t(stream_),
                uint32_t(stream_ >> 32)};
        std::array<uint32_t, 2> key = key_;
        for (int round = 0; round < 10; round++) {
            const uint64_t p0 = uint64_t(0xD2511F53u) * counter[0];
            const uint64_t p1 = uint64_t(0xCD9E8D57u) * counter[2];
            counter = {
                    uint32_t(p1 >> 32) ^ counter[1] ^ key[0],
                    uint32_t(p1),
                    uint32_t(p0 >> 32) ^ counter[3] ^ key[1],
                    uint32_t(p0)};
            key[0] += 0x9E3779B9u;
            key[1] += 0xBB67AE85u;
        }
        return counter;
    }

    /// The next 64 random bits.
    uint64_t next() {
        const Block b = block(position_ >> 1);
        const int half = 2 * (position_++ & 1);
        return b[half] | uint64_t(b[half + 1]) << 32;
    }

    /// Uniform in [0, 1).
    double uniform() {
        return double(next() >> 11) * 0x1p-53;
    }

    /// Uniform in [0, n), n >= 1. The bias is below n / 2^64.
    int64_t below(int64_t n) {
        return int64_t((static_cast<unsigned __int128>(next()) * n) >> 64);
    }

   private:
    std::array<uint32_t, 2> key_;
    uint64_t stream_;
    uint64_t position_ = 0;
};

} // namespace faiss_flashgmm
