#include <gtest/gtest.h>

#include <faiss_flashgmm/cpu/CpuBackend.h>
#include <faiss_flashgmm/cpu/ReferenceBackend.h>

#include "backend_conformance.h"

namespace {

using namespace faiss_flashgmm;
using conformance::Case;

class CpuConformance : public testing::TestWithParam<Case> {};

TEST_P(CpuConformance, AgreesWithFp64Reference) {
    CpuBackend backend;
    conformance::expect_conforms(
            backend,
            GetParam(),
            {.log_z = 2e-7, .statistics = 5e-7, .dropped = 0x1p-24});
}

TEST_P(CpuConformance, ChunksDoNotMatterBitForBit) {
    CpuBackend backend;
    conformance::expect_chunks_do_not_matter(backend, GetParam(), 0);
}

INSTANTIATE_TEST_SUITE_P(
        Cases,
        CpuConformance,
        testing::ValuesIn(conformance::cases()),
        [](const auto& info) { return info.param.name; });

TEST(CpuBackend, RowTypesDoNotMatterBitForBit) {
    CpuBackend backend;
    conformance::expect_row_types_do_not_matter(backend, 0);
}

TEST(ReferenceBackend, RowTypesDoNotMatterBitForBit) {
    ReferenceBackend backend;
    conformance::expect_row_types_do_not_matter(backend, 0);
}

} // namespace
