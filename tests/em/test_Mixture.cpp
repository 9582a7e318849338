#include <cmath>

#include <gtest/gtest.h>

#include <faiss_flashgmm/em/Mixture.h>
#include <faiss_flashgmm/utils/Error.h>

namespace {

using namespace faiss_flashgmm;

std::string message_of(const Mixture& mixture) {
    try {
        mixture.check();
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

TEST(Mixture, CheckNamesTheOffendingEntry) {
    Mixture good(3, 2);
    EXPECT_EQ(message_of(good), "");

    Mixture m = good;
    m.mean(2)[1] = NAN;
    EXPECT_NE(
            message_of(m).find("mean 2 has nan in column 1"),
            std::string::npos);
    m = good;
    m.variances[1] = -4;
    EXPECT_NE(message_of(m).find("variance 1 is -4"), std::string::npos);
    m = good;
    m.weights[0] = -0.5;
    EXPECT_NE(message_of(m).find("weight 0 is -0.5"), std::string::npos);
    m = good;
    m.weights[0] = 0.5;
    EXPECT_NE(message_of(m).find("sum to 1.16"), std::string::npos);
    m = good;
    m.variances.pop_back();
    EXPECT_NE(message_of(m).find("2 variances"), std::string::npos);
    EXPECT_THROW(Mixture(0, 2), Error);
    EXPECT_THROW(Mixture(2, 0), Error);
}

TEST(Mixture, CountsDistinctMeans) {
    Mixture m(4, 2);
    EXPECT_EQ(m.distinct_means(), 1);
    m.mean(1)[0] = 1;
    m.mean(3)[0] = 1;
    EXPECT_EQ(m.distinct_means(), 2);
}

TEST(Conditioning, RoundTripsAtAnyOffsetAndScale) {
    for (const double scale : {1e-25, 1.0, 1e15}) {
        for (const double offset : {0.0, 1e3}) {
            Mixture user(3, 4);
            for (int64_t i = 0; i < 12; i++) {
                user.means[i] = float((offset + double(i * i)) * scale);
            }
            user.variances = {scale * scale, 4 * scale * scale, 1e-3};
            user.variances[2] *= scale * scale;
            const Conditioning c = Conditioning::from_mixture(user);
            const Mixture conditioned = c.to_conditioned(user);
            for (const float v : conditioned.means) {
                EXPECT_LT(std::abs(v), 10);
            }
            const Mixture back = c.to_user(conditioned);
            for (int64_t i = 0; i < 12; i++) {
                EXPECT_NEAR(
                        back.means[i],
                        user.means[i],
                        2e-7 * std::abs(user.means[11]));
            }
            for (int64_t i = 0; i < 3; i++) {
                EXPECT_DOUBLE_EQ(back.variances[i], user.variances[i]);
            }
        }
    }
}

TEST(Conditioning, ScaleIsAPowerOfTwo) {
    const Conditioning c =
            Conditioning::from_moments({1, 2, 3}, /*variance=*/7, true);
    int exponent;
    EXPECT_EQ(std::frexp(c.scale, &exponent), 0.5);
    EXPECT_GT(c.global_variance, 0.4);
    EXPECT_LT(c.global_variance, 2.1);
    EXPECT_EQ(c.shift[1], 2.0f);
    EXPECT_EQ(Conditioning::from_moments({1, 2}, 7, false).shift[1], 0.0f);
}

TEST(Conditioning, ConstantRowsHaveAFiniteScale) {
    for (const double value : {0.0, 3.0, 1e20}) {
        const Conditioning c = Conditioning::from_moments({value}, 0, true);
        EXPECT_TRUE(std::isfinite(c.scale) && c.scale > 0);
        EXPECT_TRUE(std::isfinite(c.global_variance) && c.global_variance > 0);
    }
}

} // namespace
