#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include <faiss_flashgmm/cpu/ReferenceBackend.h>
#include <faiss_flashgmm/gpu/CudaBackend.h>

#include "conformance/backend_conformance.h"

namespace {

using namespace faiss_flashgmm;
using conformance::Case;
using conformance::Problem;

struct Parameters {
    CudaMatrixUnit unit;
    int64_t m;
};

class CudaAssignment : public testing::TestWithParam<Parameters> {};

/// The scores of each rank, whatever the components; and each component has
/// the score that it is given.
TEST_P(CudaAssignment, ListsAgreeWithFp64) {
    if (const std::string why = CudaBackend::why_unavailable(); !why.empty()) {
        GTEST_SKIP() << why;
    }
    const auto [unit, m] = GetParam();
    for (const double separation : {0.7, 4.0, 20.0}) {
        SCOPED_TRACE(separation);
        const Problem p = Case{"lists", 700, 333, 40, separation, 4}.make(41);
        const int64_t k = p.mixture.k;
        CudaOptions options;
        options.matrix_unit = unit;
        CudaBackend backend(options);
        ReferenceBackend reference;
        std::vector<int64_t> ids(p.n * m, -7), all_ids(p.n * k);
        std::vector<float> scores(p.n * m, NAN), all_scores(p.n * k);
        std::vector<float> z(p.n, NAN), true_z(p.n);
        backend.begin(p.mixture, p.conditioning);
        reference.begin(p.mixture, p.conditioning);
        backend.assign(p.n, p.x.data(), m, ids.data(), scores.data(), z.data());
        reference.assign(
                p.n,
                p.x.data(),
                k,
                all_ids.data(),
                all_scores.data(),
                true_z.data());
        int wrong = 0;
        for (int64_t i = 0; i < p.n; i++) {
            std::vector<float> of_component(k);
            for (int64_t e = 0; e < k; e++) {
                of_component[all_ids[i * k + e]] = all_scores[i * k + e];
            }
            const auto near = [](float a, float b) {
                return std::abs(a - b) <= 1e-5f * (100 + std::abs(b));
            };
            std::set<int64_t> seen;
            for (int64_t e = 0; e < m; e++) {
                const int64_t id = ids[i * m + e];
                ASSERT_GE(id, 0);
                ASSERT_LT(id, k);
                seen.insert(id);
                wrong += !near(scores[i * m + e], all_scores[i * k + e]) ||
                        !near(scores[i * m + e], of_component[id]);
            }
            EXPECT_EQ(int64_t(seen.size()), m);
            wrong +=
                    !(std::abs(z[i] - true_z[i]) <=
                      0x1p-11f * (1 + std::abs(true_z[i])));
        }
        EXPECT_EQ(wrong, 0);
    }
}

INSTANTIATE_TEST_SUITE_P(
        Units,
        CudaAssignment,
        testing::Values(
                Parameters{CudaMatrixUnit::automatic, 2},
                Parameters{CudaMatrixUnit::automatic, 3},
                Parameters{CudaMatrixUnit::automatic, 5},
                Parameters{CudaMatrixUnit::automatic, 8},
                Parameters{CudaMatrixUnit::automatic, 9},
                Parameters{CudaMatrixUnit::mma, 4},
                Parameters{CudaMatrixUnit::mma, 8}));

} // namespace
