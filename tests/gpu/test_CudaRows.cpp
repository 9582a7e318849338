#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <faiss_flashgmm/em/EMSolver.h>
#include <faiss_flashgmm/em/RowMoments.h>
#include <faiss_flashgmm/gpu/CudaBackend.h>
#include <faiss_flashgmm/gpu/CudaRows.h>
#include <faiss_flashgmm/utils/Error.h>

#include "conformance/backend_conformance.h"
#include "device.h"

namespace {

using namespace faiss_flashgmm;
using conformance::Case;
using conformance::Problem;

constexpr RowType kTypes[] = {
        RowType::float32,
        RowType::float16,
        RowType::bfloat16,
        RowType::int8,
        RowType::uint8};

TEST(CudaRows, GathersRowsAndWeights) {
    SKIP_WITHOUT_DEVICE();
    const Problem p = conformance::whole_numbers(2);
    const int64_t d = p.mixture.d;
    const auto weights = on_device(p.weights);
    const std::vector<int64_t> indices = {5, 0, 699, 5, 350};
    for (const RowType type : kTypes) {
        const auto bytes = on_device(conformance::encode(p.x, type));
        CudaRows rows(p.n, d, {bytes.get(), type}, weights.get());
        EXPECT_TRUE(rows.weighted());
        std::vector<float> x(indices.size() * d, NAN);
        std::vector<float> w(indices.size(), NAN);
        rows.gather(indices, x.data(), w.data());
        for (size_t i = 0; i < indices.size(); i++) {
            EXPECT_EQ(w[i], p.weights[indices[i]]);
            for (int64_t j = 0; j < d; j++) {
                ASSERT_EQ(x[i * d + j], p.x[indices[i] * d + j]) << i;
            }
        }
    }
    EXPECT_THROW(CudaRows(p.n, d, p.x.data()), Error);
    const auto x = on_device(p.x);
    EXPECT_THROW(CudaRows(p.n, d, x.get(), p.weights.data()), Error);
    CudaRows rows(p.n, d, x.get());
    EXPECT_THROW(rows.read(1, p.n), Error);
}

TEST(CudaBackend, MomentsAreThoseOfTheHost) {
    SKIP_WITHOUT_DEVICE();
    const Problem p = conformance::whole_numbers(3);
    const int64_t d = p.mixture.d;
    CudaBackend backend;
    for (const bool weighted : {false, true}) {
        const float* w = weighted ? p.weights.data() : nullptr;
        RowMoments expected(std::vector<double>(d, 40.0));
        expected.add(0, {p.n, p.x.data(), w});
        for (const RowType type : kTypes) {
            const std::vector<std::byte> bytes = conformance::encode(p.x, type);
            const RowView x(bytes.data(), type);
            RowMoments actual(std::vector<double>(d, 40.0));
            EXPECT_EQ(backend.add_moments(0, {300, x, w}, actual), "");
            EXPECT_EQ(
                    backend.add_moments(
                            300,
                            {p.n - 300, x.from(300 * d), w ? w + 300 : w},
                            actual),
                    "");
            for (size_t i = 0; i < expected.flat().size(); i++) {
                EXPECT_NEAR(
                        actual.flat()[i],
                        expected.flat()[i],
                        1e-12 * (1 + std::abs(expected.flat()[i])));
            }
        }
    }
}

TEST(CudaBackend, BadRowsAreNamedAsOnTheHost) {
    SKIP_WITHOUT_DEVICE();
    constexpr int64_t kD = 33, kN = 1000;
    struct Bad {
        int64_t row, column; // column -1: the weight
        float value;
    };
    const float infinity = std::numeric_limits<float>::infinity();
    CudaBackend backend;
    for (const std::vector<Bad>& bad : {
                 std::vector<Bad>{{0, 0, NAN}},
                 {{999, 32, -infinity}},
                 {{500, 31, infinity}, {500, 7, NAN}, {501, 0, NAN}},
                 {{300, 2, NAN}, {300, -1, -1}},
                 {{700, -1, NAN}, {701, 4, infinity}},
                 {{20, -1, infinity}},
         }) {
        std::vector<float> x(kN * kD, 1.5f), w(kN, 2.0f);
        for (const Bad& b : bad) {
            (b.column < 0 ? w[b.row] : x[b.row * kD + b.column]) = b.value;
        }
        RowMoments host(std::vector<double>(kD, 0.0));
        const std::string expected = host.add(7000, {kN, x.data(), w.data()});
        ASSERT_NE(expected, "");
        RowMoments moments(std::vector<double>(kD, 0.0));
        EXPECT_EQ(
                backend.add_moments(7000, {kN, x.data(), w.data()}, moments),
                expected);
        const auto device_x = on_device(x);
        const auto device_w = on_device(w);
        EXPECT_EQ(
                backend.add_moments(
                        7000, {kN, device_x.get(), device_w.get()}, moments),
                expected);
    }
}

/// Whatever rows are stored as and wherever, the fit is the same.
TEST(CudaBackend, FitsRowsInPlaceAndOfAnyType) {
    SKIP_WITHOUT_DEVICE();
    const Problem p = conformance::whole_numbers(4);
    const int64_t d = p.mixture.d;
    CudaOptions cuda;
    cuda.deterministic = true;
    CudaBackend backend(cuda);
    const auto weights = on_device(p.weights);
    for (const Initialization init :
         {Initialization::random_rows,
          Initialization::lloyd,
          Initialization::kmeans_pp}) {
        EMOptions options;
        options.niter = 5;
        options.init = init;
        options.max_rows_per_component = 20;
        MemoryRows memory(p.n, d, p.x.data(), p.weights.data());
        const EMResult expected =
                EMSolver(backend, options).fit(memory, p.mixture.k);
        for (const RowType type : kTypes) {
            SCOPED_TRACE(name_of(type));
            const std::vector<std::byte> bytes = conformance::encode(p.x, type);
            MemoryRows typed(p.n, d, {bytes.data(), type}, p.weights.data());
            const auto device_bytes = on_device(bytes);
            CudaRows in_place(
                    p.n, d, {device_bytes.get(), type}, weights.get());
            for (RowSource* rows :
                 {(RowSource*)&typed, (RowSource*)&in_place}) {
                const EMResult actual =
                        EMSolver(backend, options).fit(*rows, p.mixture.k);
                EXPECT_EQ(actual.mixture.means, expected.mixture.means);
                EXPECT_EQ(actual.mixture.variances, expected.mixture.variances);
            }
        }
    }
}

} // namespace
