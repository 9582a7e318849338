#include <faiss_flashgmm/utils/Checksum.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace faiss_flashgmm {
namespace {

std::vector<uint8_t> some_bytes(size_t n) {
    std::vector<uint8_t> bytes(n);
    for (size_t i = 0; i < n; i++) {
        bytes[i] = uint8_t(i * i * 31 + 7);
    }
    return bytes;
}

uint64_t checksum_of(const std::vector<uint8_t>& bytes, size_t piece) {
    Checksum checksum;
    for (size_t i = 0; i < bytes.size(); i += piece) {
        checksum.add(&bytes[i], std::min(piece, bytes.size() - i));
    }
    EXPECT_EQ(checksum.size(), bytes.size());
    return checksum.value();
}

TEST(Checksum, DoesNotDependOnThePieces) {
    for (size_t n : {0, 1, 7, 8, 9, 100, 1001}) {
        const std::vector<uint8_t> bytes = some_bytes(n);
        for (size_t piece : {1, 3, 8, 13, 64}) {
            EXPECT_EQ(checksum_of(bytes, piece), checksum_of(bytes, 2000))
                    << n << " bytes in pieces of " << piece;
        }
    }
}

TEST(Checksum, ChangesWithEachBitAndWithTheLength) {
    std::set<uint64_t> seen;
    std::vector<uint8_t> bytes = some_bytes(41);
    size_t n = 0;
    for (size_t bit = 0; bit < 8 * bytes.size(); bit++, n++) {
        bytes[bit / 8] ^= 1 << bit % 8;
        seen.insert(checksum_of(bytes, 41));
        bytes[bit / 8] ^= 1 << bit % 8;
    }
    for (size_t zeros = 0; zeros < 30; zeros++, n++) {
        seen.insert(checksum_of(std::vector<uint8_t>(zeros), 41));
    }
    EXPECT_EQ(seen.size(), n);
}

} // namespace
} // namespace faiss_flashgmm
