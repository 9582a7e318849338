#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <faiss_flashgmm/gpu/CudaBackend.h>
#include <faiss_flashgmm/gpu/utils/Buffer.h>
#include <faiss_flashgmm/gpu/utils/CudaError.h>
#include <faiss_flashgmm/gpu/utils/Device.h>
#include <faiss_flashgmm/gpu/utils/StagedCopy.h>

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
    DeviceMemory memory;
    try {
        DeviceBuffer<char>(memory).reserve(kBytes, "a petabyte");
        FAIL() << "no exception";
    } catch (const OutOfMemory& e) {
        EXPECT_EQ(e.asked_bytes, kBytes);
        EXPECT_GT(e.available_bytes, 0u);
        EXPECT_NE(std::string(e.what()).find("a petabyte"), std::string::npos);
    }
    // The failure leaves nothing behind.
    DeviceBuffer<char> small(memory);
    small.reserve(1024, "a kilobyte");
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(BufferTest, MemoryIsCountedAndCapped) {
    DeviceMemory memory(1000);
    {
        DeviceBuffer<char> a(memory);
        DeviceBuffer<char> b(memory);
        a.reserve(600, "a");
        a.reserve(500, "a"); // fits what is there
        EXPECT_EQ(memory.used(), 600);
        EXPECT_THROW(b.reserve(401, "b"), OutOfMemory);
        EXPECT_EQ(memory.available(), 400);
        b.reserve(400, "b");
        b = DeviceBuffer<char>(memory);
    }
    EXPECT_EQ(memory.used(), 0);
    EXPECT_EQ(memory.peak(), 1000);
}

TEST_F(BufferTest, StagedCopyCopiesEveryByte) {
    Stream stream;
    StagedCopy staged(0, stream);
    DeviceMemory memory;
    for (const size_t size : {size_t(1), size_t(1) << 20, size_t(37) << 20}) {
        std::vector<char> from(size + 3);
        for (size_t i = 0; i < from.size(); i++) {
            from[i] = char(i * 2654435761u >> 13);
        }
        DeviceBuffer<char> to(memory);
        to.reserve(size, "test data");
        staged.start(to.get(), from.data() + 3, size);
        staged.finish();
        stream.synchronize();
        std::vector<char> back(size);
        FLASHGMM_CUDA(cudaMemcpy(
                back.data(), to.get(), size, cudaMemcpyDeviceToHost));
        EXPECT_TRUE(std::equal(back.begin(), back.end(), from.begin() + 3));
    }
    staged.start(nullptr, "a", 1);
    EXPECT_THROW(staged.finish(), Error);
    staged.finish(); // said once
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
