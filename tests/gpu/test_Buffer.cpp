#include <gtest/gtest.h>

#include <string>

#include <faiss_flashgmm/gpu/CudaBackend.h>
#include <faiss_flashgmm/gpu/utils/Buffer.h>
#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace {

using namespace faiss_flashgmm;
using namespace faiss_flashgmm::gpu;

class BufferTest : public testing::Test {
   protected:
    void SetUp() override {
        const std::string why = CudaBackend::why_unavailable();
        if (!why.empty()) {
            GTEST_SKIP() << why;
        }
    }
};

TEST_F(BufferTest, NamesBytesWhenMemoryIsShort) {
    constexpr size_t kBytes = size_t(1) << 50;
    try {
        DeviceBuffer<char> buffer(kBytes, "a petabyte");
        FAIL() << "no exception";
    } catch (const OutOfMemory& e) {
        EXPECT_EQ(e.asked_bytes, kBytes);
        EXPECT_GT(e.available_bytes, 0u);
        EXPECT_NE(std::string(e.what()).find("a petabyte"), std::string::npos);
    }
    // The failure leaves nothing behind.
    DeviceBuffer<char> small(1024, "a kilobyte");
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(BufferTest, ErrorNamesCallAndCode) {
    try {
        FLASHGMM_CUDA(cudaSetDevice(-1));
        FAIL() << "no exception";
    } catch (const CudaError& e) {
        const std::string what = e.what();
        EXPECT_EQ(e.code, cudaErrorInvalidDevice);
        EXPECT_NE(what.find("cudaSetDevice(-1)"), std::string::npos) << what;
        EXPECT_NE(what.find("cudaErrorInvalidDevice"), std::string::npos);
        EXPECT_NE(what.find("test_Buffer.cpp"), std::string::npos) << what;
    }
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

} // namespace
