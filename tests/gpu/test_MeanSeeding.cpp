#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <faiss_flashgmm/em/Initialization.h>
#include <faiss_flashgmm/em/RowSource.h>
#include <faiss_flashgmm/gpu/CudaBackend.h>

#include "conformance/backend_conformance.h"
#include "device.h"

namespace {

using namespace faiss_flashgmm;
using conformance::Case;
using conformance::Problem;

TEST(MeanSeeding, DrawsWhatTheHostDraws) {
    SKIP_WITHOUT_DEVICE();
    CudaBackend backend;
    for (const bool weighted : {false, true}) {
        for (const int64_t n : {300, 5000}) {
            for (const int64_t given : {0, 3}) {
                const Problem p = Case{"seeds", n, 20, 37, 2, 4, true}.make(3);
                constexpr int64_t kK = 100;
                MemoryRows rows(
                        n,
                        37,
                        p.x.data(),
                        weighted ? p.weights.data() : nullptr);
                std::vector<float> expected(kK * 37), actual(kK * 37);
                std::copy_n(p.x.begin(), given * 37, expected.begin());
                std::copy_n(p.x.begin(), given * 37, actual.begin());
                int64_t reported = 0;
                draw_kmeans_pp(rows, given, kK, 5, expected.data());
                backend.draw_kmeans_pp(
                        rows, given, kK, 5, actual.data(), [&](int64_t c) {
                            reported = c;
                        });
                EXPECT_EQ(actual, expected);
                EXPECT_EQ(reported, kK);
            }
        }
    }
}

/// Five values, twenty times each, of which half the rows have no weight:
/// all five are found, and then some again.
TEST(MeanSeeding, GoesOnWhenEveryRowIsAMean) {
    SKIP_WITHOUT_DEVICE();
    std::vector<float> x, w;
    for (int i = 0; i < 100; i++) {
        x.push_back(float(i % 10));
        w.push_back(float(i % 10 < 5));
    }
    MemoryRows rows(100, 1, x.data(), w.data());
    std::vector<float> means(9, -1.0f);
    CudaBackend backend;
    backend.draw_kmeans_pp(rows, 0, 9, 5, means.data(), {});
    EXPECT_EQ(
            std::set<float>(means.begin(), means.begin() + 5),
            (std::set<float>{0, 1, 2, 3, 4}));
    for (const float m : means) {
        EXPECT_TRUE(m >= 0 && m <= 4) << m;
    }
}

} // namespace
