#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <faiss_flashgmm/utils/finite.h>

namespace {

using namespace faiss_flashgmm;

TEST(Finite, TellsNumbersFromOthers) {
    using Limits = std::numeric_limits<float>;
    for (const float v :
         {0.0f, -0.0f, Limits::max(), Limits::lowest(), Limits::denorm_min()}) {
        EXPECT_EQ(is_not_finite(v), 0);
    }
    for (const float v : {NAN, -NAN, INFINITY, -INFINITY}) {
        EXPECT_EQ(is_not_finite(v), 1);
    }
}

TEST(Finite, FindsTheFirst) {
    for (const int64_t n : {0, 1, 1023, 1024, 1025, 5000}) {
        std::vector<float> x(n, 1.0f);
        EXPECT_EQ(first_not_finite(n, x.data()), n);
        for (const int64_t at : {n - 1, n / 2, n / 3}) {
            if (at >= 0 && at < n) {
                x[at] = NAN; // ever earlier ones
                EXPECT_EQ(first_not_finite(n, x.data()), at);
            }
        }
    }
}

} // namespace
