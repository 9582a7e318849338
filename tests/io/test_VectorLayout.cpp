#include <faiss_flashgmm/io/VectorLayout.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <faiss_flashgmm/utils/Error.h>

#include "files.h"

using namespace faiss_flashgmm;

namespace {

VectorLayout parse(const std::string& name, const std::string& bytes) {
    return VectorLayout::parse(
            name, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

std::string error_of(const std::string& name, const std::string& bytes) {
    return message_of<Error>([&] { parse(name, bytes); });
}

const std::string kNpy =
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";

std::string npy_with(const std::string& from, const std::string& to) {
    std::string dictionary = kNpy;
    dictionary.replace(dictionary.find(from), from.size(), to);
    return npy_header(dictionary);
}

} // namespace

TEST(VectorLayout, KnowsTheFormatsByName) {
    struct Case {
        const char* name;
        ElementType type;
        bool row_headers;
    };
    for (const Case& c :
         {Case{"a.fvecs", ElementType::float32, true},
          Case{"a.bvecs", ElementType::uint8, true},
          Case{"a.ivecs", ElementType::int32, true},
          Case{"a.fbin", ElementType::float32, false},
          Case{"a.f16bin", ElementType::float16, false},
          Case{"a.u8bin", ElementType::uint8, false},
          Case{"a.i8bin", ElementType::int8, false},
          Case{"a.ibin", ElementType::int32, false}}) {
        const std::string values(2 * 3 * size_of(c.type), '\1');
        std::string bytes;
        if (c.row_headers) {
            const std::string row = bytes_of<int32_t>({3}) +
                    values.substr(0, 3 * size_of(c.type));
            bytes = row + row;
        } else {
            bytes = bin_header(2, 3) + values;
        }
        const VectorLayout layout = parse(c.name, bytes);
        EXPECT_EQ(layout.n, 2) << c.name;
        EXPECT_EQ(layout.d, 3) << c.name;
        EXPECT_EQ(layout.type, c.type) << c.name;
        EXPECT_EQ(layout.row_headers, c.row_headers) << c.name;
        EXPECT_EQ(layout.offset, c.row_headers ? 4u : 8u) << c.name;
    }
}

TEST(VectorLayout, TakesHeadersOfEightAndOfSixteenBytes) {
    const std::string values(2 * 3 * 4, '\0');
    EXPECT_EQ(parse("x.fbin", bin_header(2, 3) + values).offset, 8u);
    const VectorLayout wide =
            parse("x.fbin", bytes_of<uint64_t>({2, 3}) + values);
    EXPECT_EQ(wide.offset, 16u);
    EXPECT_EQ(wide.n, 2);
    EXPECT_EQ(wide.d, 3);
}

TEST(VectorLayout, PassesOverDistancesBehindIds) {
    const std::string ids(2 * 3 * 4, '\0');
    const VectorLayout layout =
            parse("truth.ibin", bin_header(2, 3) + ids + ids);
    EXPECT_EQ(layout.n, 2);
    EXPECT_EQ(layout.stride, 12u);
    EXPECT_NE(error_of("x.fbin", bin_header(2, 3) + ids + ids), "");
}

TEST(VectorLayout, ReadsNpyOfEachVersionAndType) {
    const std::string values(24, '\0');
    const VectorLayout layout = parse("x.npy", npy_header(kNpy) + values);
    EXPECT_EQ(layout.n, 2);
    EXPECT_EQ(layout.d, 3);
    EXPECT_EQ(layout.type, ElementType::float32);
    EXPECT_EQ(layout.offset, 10 + kNpy.size());

    for (char version : {2, 3}) {
        std::string wide("\x93NUMPY", 6);
        wide += version;
        wide += '\0';
        wide += bytes_of<uint32_t>({uint32_t(kNpy.size())}) + kNpy;
        EXPECT_EQ(parse("x.npy", wide + values).offset, 12 + kNpy.size());
    }
    EXPECT_EQ(
            parse("x.npy", npy_with("<f4", "|i1") + std::string(6, '\0')).type,
            ElementType::int8);
    EXPECT_EQ(
            parse("x.npy", npy_with("<f4", "<f8") + std::string(48, '\0')).type,
            ElementType::float64);
}

TEST(VectorLayout, SaysWhatIsWrongWithNpy) {
    const std::string values(24, '\0');
    const auto error = [&](const std::string& header) {
        return error_of("x.npy", header + values);
    };
    EXPECT_NE(
            error(npy_with("False", "True")).find("Fortran"),
            std::string::npos);
    EXPECT_NE(
            error(npy_with("(2, 3)", "(6,)")).find("two-dim"),
            std::string::npos);
    EXPECT_NE(
            error(npy_with("(2, 3)", "(1, 2, 3)")).find("two-dim"),
            std::string::npos);
    EXPECT_NE(
            error(npy_with("(2, 3)", "(2, -3)")).find("two-dim"),
            std::string::npos);
    EXPECT_NE(
            error(npy_with("(2, 3)", "(2, 4)")).find("truncated"),
            std::string::npos);
    EXPECT_NE(error(npy_with("<f4", ">f4")).find(">f4"), std::string::npos);
    EXPECT_NE(
            error(npy_with("'<f4'", "[('a', 1)]")).find("records"),
            std::string::npos);
    EXPECT_NE(
            error(npy_with("shape", "shade")).find("shape"), std::string::npos);
    EXPECT_NE(error("\x93NUMPX").find(".npy"), std::string::npos);
    EXPECT_NE(error_of("x.npy", npy_header(kNpy).substr(0, 30)), "");
}

TEST(VectorLayout, NamesTheFileAndItsSizesIfTheyDoNotFit) {
    const std::string error =
            error_of("dir/x.fbin", bin_header(5, 7) + std::string(139, '\0'));
    EXPECT_NE(error.find("dir/x.fbin"), std::string::npos) << error;
    EXPECT_NE(error.find("147"), std::string::npos) << error;
    EXPECT_NE(error.find("5 rows of 7"), std::string::npos) << error;
    for (const char* name : {"x.fvecs", "x.fbin", "x.ibin", "x.npy"}) {
        error_of(name, "");
        error_of(name, "abc");
        error_of(name, std::string(64, '\xff'));
    }
    error_of("x.fbin", bin_header(3, 0));
    error_of("x.fvecs", bytes_of<int32_t>({0, 0}));
    error_of("x.fvecs", bytes_of<int32_t>({-1, 0}));
    EXPECT_NE(error_of("x.txt", "1 2 3").find(".fvecs"), std::string::npos);
}

TEST(VectorLayout, RefusesSizesThatOverflow) {
    // 2^32 rows of 2^32 elements are 0 bytes in 64 bits.
    error_of("x.u8bin", bytes_of<uint64_t>({1ull << 32, 1ull << 32}));
    error_of("x.fbin", bytes_of<uint64_t>({1ull << 62, 1}));
    error_of("x.fbin", bytes_of<uint64_t>({~0ull, ~0ull}));
    error_of("x.npy", npy_with("(2, 3)", "(4294967296, 4294967296)"));
    error_of("x.npy", npy_with("(2, 3)", "(99999999999999999999, 1)"));
}

TEST(VectorLayout, TellsAGitLfsPointer) {
    const std::string pointer =
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
    EXPECT_NE(
            error_of("x.fvecs", pointer).find("git lfs pull"),
            std::string::npos);
}

TEST(VectorLayout, AnyBytesAreAnErrorOrAWholeFile) {
    std::mt19937 random(5);
    const std::vector<std::string> seeds = {
            npy_header(kNpy) + std::string(24, '\0'),
            bin_header(2, 3) + std::string(24, '\0'),
            bytes_of<uint64_t>({2, 3}) + std::string(24, '\0'),
            bytes_of<int32_t>({3, 1, 2, 3, 3, 4, 5, 6})};
    const char* const names[] = {"x.npy", "x.fbin", "x.ibin", "x.fvecs"};
    for (int trial = 0; trial < 20000; trial++) {
        std::string bytes = seeds[random() % seeds.size()];
        for (int change = random() % 4; change >= 0; change--) {
            bytes[random() % bytes.size()] = char(random());
        }
        bytes.resize(random() % 3 ? bytes.size() : random() % bytes.size());
        const std::string name = names[random() % 4];
        try {
            const VectorLayout layout = parse(name, bytes);
            ASSERT_GE(layout.d, 1);
            const uint64_t row = layout.d * size_of(layout.type);
            ASSERT_TRUE(
                    layout.n == 0 ||
                    layout.offset + (layout.n - 1) * layout.stride + row <=
                            bytes.size());
        } catch (const Error& error) {
            ASSERT_NE(std::string(error.what()).find(name), std::string::npos);
        }
    }
}
