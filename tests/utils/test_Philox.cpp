#include <set>

#include <gtest/gtest.h>

#include <faiss_flashgmm/utils/Philox.h>

namespace {

using faiss_flashgmm::Philox;

// Known answers of the authors' Random123 library.
TEST(Philox, KnownAnswers) {
    EXPECT_EQ(
            Philox(0, 0).block(0),
            (Philox::Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    EXPECT_EQ(
            Philox(~0ull, ~0ull).block(~0ull),
            (Philox::Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(
            Philox(0x299f31d0a4093822, 0x0370734413198a2e)
                    .block(0x85a308d3243f6a88),
            (Philox::Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformAndBelowStayInRange) {
    Philox random(42, 7);
    double sum = 0;
    std::set<int64_t> seen;
    for (int i = 0; i < 10000; i++) {
        const double u = random.uniform();
        ASSERT_GE(u, 0);
        ASSERT_LT(u, 1);
        sum += u;
        const int64_t v = random.below(10);
        ASSERT_GE(v, 0);
        ASSERT_LT(v, 10);
        seen.insert(v);
    }
    EXPECT_NEAR(sum / 10000, 0.5, 0.02);
    EXPECT_EQ(seen.size(), 10);
}

TEST(Philox, StreamsAndSeedsDiffer) {
    EXPECT_NE(Philox(1, 0).next(), Philox(1, 1).next());
    EXPECT_NE(Philox(1, 0).next(), Philox(2, 0).next());
    EXPECT_EQ(Philox(3, 4).next(), Philox(3, 4).next());
}

} // namespace
