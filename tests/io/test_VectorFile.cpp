#include <faiss_flashgmm/io/VectorFile.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <faiss_flashgmm/io/VectorWriter.h>
#include <faiss_flashgmm/utils/Error.h>

#include "files.h"

using namespace faiss_flashgmm;

namespace {

const std::vector<std::string> kNames = {
        "x.fvecs",
        "x.bvecs",
        "x.ivecs",
        "x.fbin",
        "x.f16bin",
        "x.u8bin",
        "x.i8bin",
        "x.ibin",
        "x.npy"};

/// Numbers that every format holds exactly.
std::vector<float> small_numbers(int64_t n) {
    std::vector<float> x(n);
    for (int64_t i = 0; i < n; i++) {
        x[i] = float(i * 37 % 128);
    }
    return x;
}

void write(
        const std::string& path,
        int64_t d,
        const std::vector<float>& x,
        ElementType npy_type = ElementType::float32) {
    VectorWriter writer(path, d, npy_type);
    writer.append(int64_t(x.size()) / d, x.data());
    writer.finish();
}

} // namespace

TEST(VectorFile, ReadsBackWhatWasWrittenInEveryFormat) {
    const TemporaryDirectory directory;
    const int64_t n = 23, d = 7;
    const std::vector<float> x = small_numbers(n * d);
    for (const std::string& name : kNames) {
        const std::string path = directory.file(name);
        {
            VectorWriter writer(path, d);
            writer.append(20, x.data()); // in two chunks
            writer.append(3, x.data() + 20 * d);
            writer.finish();
        }
        VectorFile file(path);
        ASSERT_EQ(file.size(), n) << name;
        ASSERT_EQ(file.dim(), d) << name;
        EXPECT_EQ(read_all(file).values, x) << name;
        for (int64_t begin = 0; begin < n; begin += 5) {
            const int64_t count = std::min<int64_t>(5, n - begin);
            std::vector<float> buffer;
            const float* const rows = read_floats(file, begin, count, buffer);
            ASSERT_EQ(file.read(begin, count).n, count) << name;
            ASSERT_EQ(
                    std::vector<float>(rows, rows + count * d),
                    std::vector<float>(
                            x.begin() + begin * d,
                            x.begin() + (begin + count) * d))
                    << name;
        }
        EXPECT_EQ(file.read(n, 0).n, 0) << name;
    }
}

TEST(VectorFile, NpyKeepsTheTypeThatWasAskedFor) {
    const TemporaryDirectory directory;
    const std::vector<float> x = small_numbers(12);
    for (ElementType type :
         {ElementType::float32,
          ElementType::float64,
          ElementType::float16,
          ElementType::uint8,
          ElementType::int8,
          ElementType::int32}) {
        const std::string path = directory.file("x.npy");
        write(path, 4, x, type);
        VectorFile file(path);
        EXPECT_EQ(file.layout().type, type);
        EXPECT_EQ(file.layout().offset % 64, 0u);
        EXPECT_EQ(read_all(file).values, x) << name_of(type);
    }
}

TEST(VectorFile, ReadsRowsInPlaceAsTheyAre) {
    const TemporaryDirectory directory;
    struct Case {
        const char* name;
        RowType type;
    };
    for (const Case& c :
         {Case{"x.fbin", RowType::float32},
          Case{"x.npy", RowType::float32},
          Case{"x.f16bin", RowType::float16},
          Case{"x.u8bin", RowType::uint8},
          Case{"x.i8bin", RowType::int8}}) {
        const std::string path = directory.file(c.name);
        write(path, 4, small_numbers(400));
        VectorFile file(path);
        const RowView all = file.read(0, 100).x;
        EXPECT_EQ(all.type, c.type) << c.name;
        EXPECT_EQ(file.read(10, 1).x.data, all.from(40).data) << c.name;
    }
}

TEST(VectorFile, ReadsElementsAsTheyAreStored) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("x.ivecs");
    const std::vector<int64_t> ids = {0, -1, 2147483647, 16777217};
    VectorWriter writer(path, 2);
    writer.append(2, ids.data());
    writer.finish();
    const VectorFile file(path);
    std::vector<int32_t> back(4);
    file.read_as(0, 2, back.data());
    EXPECT_EQ(back, std::vector<int32_t>(ids.begin(), ids.end()));
    float wrong[4];
    const std::string error =
            message_of<Error>([&] { file.read_as(0, 2, wrong); });
    EXPECT_NE(error.find("int32"), std::string::npos) << error;
}

TEST(VectorFile, RefusesRowsThatAreNotThere) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("x.fbin");
    write(path, 4, small_numbers(40));
    VectorFile file(path);
    EXPECT_THROW(file.read(8, 3), Error);
    EXPECT_THROW(file.read(-1, 1), Error);
    EXPECT_THROW(file.read(0, -1), Error);
    EXPECT_THROW(file.read(std::numeric_limits<int64_t>::max(), 2), Error);
}

TEST(VectorFile, NamesARowOfAnotherLength) {
    const TemporaryDirectory directory;
    // 2, then 3, then 1: the total is that of three rows of two.
    const std::string path = directory.write(
            "x.ivecs", bytes_of<int32_t>({2, 0, 0, 3, 0, 0, 1, 0, 0}));
    VectorFile file(path);
    EXPECT_EQ(file.read(0, 1).n, 1);
    const std::string error = message_of<Error>([&] { file.read(0, 3); });
    EXPECT_NE(error.find("row 1"), std::string::npos) << error;
    EXPECT_NE(error.find("x.ivecs"), std::string::npos) << error;
}

TEST(VectorFile, NamesAFileThatCannotBeRead) {
    const TemporaryDirectory directory;
    for (const std::string& path :
         {directory.file("missing.fbin"), directory.file(".")}) {
        const std::string error =
                message_of<Error>([&] { VectorFile file(path); });
        EXPECT_NE(error.find(path), std::string::npos) << error;
    }
    directory.write("empty.npy", "");
    EXPECT_THROW(VectorFile(directory.file("empty.npy")), Error);
}

TEST(VectorFile, MayHoldNoRows) {
    const TemporaryDirectory directory;
    for (const char* name : {"x.fbin", "x.npy"}) {
        write(directory.file(name), 5, {});
        VectorFile file(directory.file(name));
        EXPECT_EQ(file.size(), 0) << name;
        EXPECT_EQ(file.dim(), 5) << name;
        EXPECT_EQ(read_all(file).values.size(), 0u) << name;
    }
}

TEST(VectorWriter, NamesAValueThatDoesNotFit) {
    const TemporaryDirectory directory;
    struct Case {
        const char* name;
        float value;
    };
    for (const Case& c :
         {Case{"x.u8bin", 256},
          Case{"x.u8bin", -1},
          Case{"x.bvecs", 0.5f},
          Case{"x.i8bin", 128},
          Case{"x.ibin", 2147483648.f},
          Case{"x.ivecs", NAN},
          Case{"x.f16bin", 65520}}) {
        const float x[] = {1, 2, 3, c.value};
        VectorWriter writer(directory.file(c.name), 2);
        const std::string error =
                message_of<Error>([&] { writer.append(2, x); });
        EXPECT_NE(error.find("row 1, element 1"), std::string::npos) << error;
        EXPECT_NE(error.find(c.name), std::string::npos) << error;
    }
    EXPECT_TRUE(directory.list().empty());
}

TEST(VectorWriter, LeavesAFormerFileUntilItIsComplete) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("x.fbin");
    write(path, 1, {1, 2});
    {
        VectorWriter writer(path, 1);
        const float x = 9;
        writer.append(1, &x);
    } // given up
    VectorFile file(path);
    EXPECT_EQ(read_all(file).values, (std::vector<float>{1, 2}));
    EXPECT_EQ(directory.list(), std::vector<std::string>{"x.fbin"});
}

TEST(VectorWriter, RefusesWhatItCannotWrite) {
    const TemporaryDirectory directory;
    EXPECT_THROW(VectorWriter(directory.file("x.txt"), 4), Error);
    EXPECT_THROW(VectorWriter(directory.file("x.fbin"), 0), Error);
    EXPECT_THROW(VectorWriter(directory.file("no/such/x.fbin"), 4), Error);
    VectorWriter writer(directory.file("x.fbin"), 1);
    const int64_t id = 1;
    EXPECT_THROW(writer.append(1, &id), Error);
    EXPECT_THROW(
            {
                VectorWriter ids(directory.file("x.ibin"), 1);
                const int64_t large = int64_t(1) << 31;
                ids.append(1, &large);
            },
            Error);
}
