#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <faiss_flashgmm/em/EMSolver.h>
#include <faiss_flashgmm/gpu/CudaBackend.h>
#include <faiss_flashgmm/utils/Error.h>

#include "conformance/backend_conformance.h"
#include "device.h"

// Several devices; those with two skip where there is one.

namespace {

using namespace faiss_flashgmm;
using conformance::Case;
using conformance::Problem;
using conformance::statistics_of;

CudaOptions on(std::vector<int> devices, bool deterministic = false) {
    CudaOptions options;
    options.devices = std::move(devices);
    options.deterministic = deterministic;
    return options;
}

TEST(CudaDevices, ListIsChecked) {
    SKIP_WITHOUT_DEVICE();
    EXPECT_THROW(CudaBackend(on({})), Error);
    EXPECT_THROW(CudaBackend(on({0, 0})), Error);
    EXPECT_THROW(CudaBackend(on({0, 1000})), Error);
    EXPECT_THROW(CudaBackend(on({-1})), Error);
}

TEST(CudaDevices, TwoGiveTheStatisticsOfOne) {
    SKIP_WITHOUT_DEVICES(2);
    const Problem p = Case{"two", 70'001, 600, 96, 5, 4, true}.make(3);
    CudaBackend one(on({0}));
    const SufficientStats expected = statistics_of(one, p, p.n);
    for (const std::vector<int>& devices : {std::vector<int>{0, 1}, {1, 0}}) {
        CudaBackend two(on(devices));
        for (const int64_t chunk : {p.n, int64_t(1000), int64_t(1)}) {
            Problem q = p;
            q.n = chunk == 1 ? 50 : p.n;
            const SufficientStats& actual = statistics_of(two, q, chunk);
            if (q.n == p.n) {
                EXPECT_LT(difference(actual, expected), 1e-5);
            }
        }
    }
    CudaBackend a(on({0, 1}, true));
    CudaBackend b(on({0, 1}, true));
    SufficientStats first = statistics_of(a, p, 30'000);
    EXPECT_TRUE(std::ranges::equal(
            first.flat(), statistics_of(b, p, 30'000).flat()));
}

TEST(CudaDevices, TwoAssignAsOneDoes) {
    SKIP_WITHOUT_DEVICES(2);
    const Problem p = Case{"two", 10'001, 60, 32}.make(4);
    std::vector<int64_t> ids[2];
    std::vector<float> scores[2];
    for (int i = 0; i < 2; i++) {
        CudaBackend backend(on(i ? std::vector<int>{0, 1} : std::vector{1}));
        ids[i].assign(2 * p.n, -7);
        scores[i].assign(2 * p.n, -7);
        backend.begin(p.conditioning.to_conditioned(p.mixture), p.conditioning);
        backend.assign(
                p.n, p.x.data(), 2, ids[i].data(), scores[i].data(), nullptr);
    }
    EXPECT_EQ(ids[0], ids[1]);
    EXPECT_EQ(scores[0], scores[1]);
}

TEST(CudaDevices, TwoFitAsOneDoes) {
    SKIP_WITHOUT_DEVICES(2);
    const Problem p = Case{"two", 40'000, 100, 48, 4, 4, true}.make(5);
    EMOptions options;
    options.niter = 15;
    MemoryRows rows(p.n, 48, p.x.data(), p.weights.data());
    CudaBackend one(on({0}));
    CudaBackend two(on({0, 1}));
    const EMResult a = EMSolver(one, options).fit(rows, 100, &p.mixture);
    const EMResult b = EMSolver(two, options).fit(rows, 100, &p.mixture);
    EXPECT_NEAR(
            a.iterations.back().log_likelihood,
            b.iterations.back().log_likelihood,
            1e-5 * std::abs(a.iterations.back().log_likelihood));
}

TEST(CudaDevices, RowsOfOneDeviceReachTheOther) {
    SKIP_WITHOUT_DEVICES(2);
    const Problem p = Case{"two", 20'000, 50, 32}.make(6);
    CudaBackend two(on({0, 1}));
    const SufficientStats expected = statistics_of(two, p, p.n);
    const auto x = on_device(p.x);
    two.begin(p.conditioning.to_conditioned(p.mixture), p.conditioning);
    two.accumulate(p.n, x.get(), nullptr);
    EXPECT_LT(difference(two.finish(), expected), 1e-5);
}

} // namespace
