#include <VectorFiles.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <faiss_flashgmm/utils/Error.h>

namespace {

using faiss_flashgmm::Error;

/// A file of the given bytes, gone with the test.
class TemporaryFile {
   public:
    TemporaryFile(const std::string& extension, const std::string& bytes)
            : path_(testing::TempDir() + "vectors_" +
                    testing::UnitTest::GetInstance()
                            ->current_test_info()
                            ->name() +
                    extension) {
        std::ofstream(path_, std::ios::binary) << bytes;
    }
    ~TemporaryFile() {
        std::filesystem::remove(path_);
    }
    const std::string& path() const {
        return path_;
    }

   private:
    std::string path_;
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()),
            values.size() * sizeof(T)};
}

std::string header(uint32_t n, uint32_t d) {
    return bytes_of<uint32_t>({n, d});
}

} // namespace

TEST(VectorFiles, WidensEveryKindOfHalf) {
    const std::vector<uint16_t> halves = {
            0x0000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x3555, 0x3c00, 0xfbff};
    const std::vector<float> expected = {
            0,
            0x1p-24f,
            -0x1p-24f,
            0x3ffp-24f,
            0x1p-14f,
            0x555p-12f,
            1,
            -65504};
    const TemporaryFile file(".f16bin", header(2, 4) + bytes_of(halves));
    const Matrix<float> rows = read_vectors(file.path());
    EXPECT_EQ(rows.n, 2);
    EXPECT_EQ(rows.d, 4);
    EXPECT_EQ(rows.values, expected);
}

TEST(VectorFiles, KeepsInfinityAndNaNOfHalves) {
    const TemporaryFile file(
            ".f16bin",
            header(1, 3) + bytes_of<uint16_t>({0x7c00, 0xfc00, 0x7e00}));
    const Matrix<float> rows = read_vectors(file.path());
    EXPECT_EQ(rows.values[0], INFINITY);
    EXPECT_EQ(rows.values[1], -INFINITY);
    EXPECT_TRUE(std::isnan(rows.values[2]));
}

TEST(VectorFiles, ReadsBytesOfBothLayouts) {
    const std::vector<float> expected = {1, 2, 254, 255};
    const TemporaryFile bin(".u8bin", header(2, 2) + "\x01\x02\xfe\xff");
    EXPECT_EQ(read_vectors(bin.path()).values, expected);

    const std::string d = bytes_of<int32_t>({2});
    const TemporaryFile vecs(".bvecs", d + "\x01\x02" + d + "\xfe\xff");
    const Matrix<float> rows = read_vectors(vecs.path());
    EXPECT_EQ(rows.n, 2);
    EXPECT_EQ(rows.d, 2);
    EXPECT_EQ(rows.values, expected);
}

TEST(VectorFiles, ReadsIds) {
    const TemporaryFile file(".ivecs", bytes_of<int32_t>({2, 7, -1, 2, 5, 6}));
    const Matrix<int32_t> ids = read_ids(file.path());
    EXPECT_EQ(ids.n, 2);
    EXPECT_EQ(ids.row(1)[0], 5);
}

TEST(VectorFiles, RefusesWhatDoesNotFitItsHeader) {
    const std::vector<std::pair<std::string, std::string>> files = {
            {".f16bin", ""},
            {".f16bin", "abc"},
            {".f16bin", header(2, 2) + "1234567"},
            {".f16bin", header(2, 2) + "123456789"},
            // n * d * 2 wraps around to 0 in 64 bits, n * d to 0 in 32
            {".f16bin", header(1u << 31, 1u << 31)},
            {".u8bin", header(0xffffffff, 0xffffffff) + "1"},
            {".bvecs", ""},
            {".bvecs", bytes_of<int32_t>({-1})},
            {".bvecs", bytes_of<int32_t>({0, 0})},
            {".bvecs", bytes_of<int32_t>({0x7fffffff}) + "1"},
            {".bvecs",
             bytes_of<int32_t>({2}) + "12" + bytes_of<int32_t>({3}) + "12"},
            {".txt", header(1, 1) + "1"}};
    for (const auto& [extension, bytes] : files) {
        const TemporaryFile file(extension, bytes);
        EXPECT_THROW(read_vectors(file.path()), Error)
                << extension << " of " << bytes.size() << " bytes";
    }
    EXPECT_THROW(read_vectors("/nonexistent.bvecs"), Error);
}
