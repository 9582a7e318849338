// Replaces operator new, to see what a fit holds at its peak.
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include <faiss_flashgmm/cpu/CpuBackend.h>
#include <faiss_flashgmm/em/EMSolver.h>
#include <faiss_flashgmm/utils/Philox.h>
#include <faiss_flashgmm/utils/memory.h>

namespace {

std::atomic<int64_t> held{0};
std::atomic<int64_t> peak{0};

// Out of line: GCC would take the pair of malloc and free, inlined into their
// callers, for a mismatch.
[[gnu::noinline]] void release(void* p) noexcept {
    if (p) {
        held -= int64_t(malloc_usable_size(p));
    }
    std::free(p);
}

} // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
    void* p = std::malloc(size);
    if (!p) {
        throw std::bad_alloc();
    }
    const int64_t now = held += int64_t(malloc_usable_size(p));
    int64_t seen = peak;
    while (now > seen && !peak.compare_exchange_weak(seen, now)) {
    }
    return p;
}

void operator delete(void* p) noexcept {
    release(p);
}

void operator delete(void* p, std::size_t) noexcept {
    release(p);
}

namespace {

using namespace faiss_flashgmm;

/// Random rows, made up as they are read.
class GeneratedRows : public RowSource {
   public:
    GeneratedRows(int64_t n, int64_t d) : n_(n), d_(d) {}
    int64_t size() const override {
        return n_;
    }
    int64_t dim() const override {
        return d_;
    }
    Rows read(int64_t begin, int64_t count) override {
        x_.resize(count * d_);
        for (int64_t i = 0; i < count * d_; i++) {
            const auto bits = random_.block(begin * d_ + i);
            x_[i] = float(bits[0]) * 0x1p-32f + float(bits[1] >> 30);
        }
        return {count, x_.data(), nullptr};
    }

   private:
    int64_t n_;
    int64_t d_;
    Philox random_{9};
    std::vector<float> x_;
};

int64_t peak_of_fit(int64_t n, int64_t d, int64_t k) {
    GeneratedRows rows(n, d);
    CpuBackend backend;
    EMOptions options;
    options.niter = 2;
    options.init_iterations = 1;
    options.chunk_rows = 4096;
    peak = held.load();
    const int64_t before = held;
    EMSolver(backend, options).fit(rows, k);
    return peak - before;
}

TEST(Memory, PeakDoesNotGrowWithTheRows) {
    const int64_t small = peak_of_fit(50000, 8, 200);
    const int64_t large = peak_of_fit(500000, 8, 200);
    EXPECT_LE(double(large), 1.05 * double(small));
    EXPECT_LT(large, int64_t(500000) * 200 * 4 / 10); // no n x k of anything
}

TEST(Memory, PeakIsBoundedWhereAllComponentsShareEveryRow) {
    // k far more than the rows can tell apart in one dimension: the pairs of
    // a block, not of all rows, are held.
    const int64_t small = peak_of_fit(20000, 1, 500);
    const int64_t large = peak_of_fit(100000, 1, 500);
    EXPECT_LE(double(large), 1.25 * double(small));
}

TEST(Memory, AFailedAllocationNamesItsBytes) {
    std::vector<double> v;
    try {
        resize_or_throw(v, uint64_t(1) << 50, "a test");
        FAIL() << "2^53 bytes were allocated";
    } catch (const OutOfMemory& error) {
        EXPECT_EQ(error.asked_bytes, uint64_t(1) << 53);
        EXPECT_GT(error.available_bytes, 0);
        EXPECT_NE(
                std::string(error.what()).find("a test needs 9007199254740992"),
                std::string::npos);
    }
    EXPECT_THROW(resize_or_throw(v, ~uint64_t(0), "a test"), OutOfMemory);
}

} // namespace
