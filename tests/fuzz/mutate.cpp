// Drives a fuzz target without libFuzzer: the same mutations of its seeds in
// every run.
//
// mutate [inputs]            default: 20000
// mutate seeds <directory>   only writes the seeds there, for libFuzzer
//
// Allocations beyond what the seeds can justify end the program.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <random>
#include <string>

#include "fuzz/fuzz_target.h"

namespace {

constexpr size_t kLargestAllocation = 64 << 20;

using Bytes = std::vector<uint8_t>;

class Mutator {
   public:
    explicit Mutator(std::vector<Bytes> seeds) : seeds_(std::move(seeds)) {}

    Bytes next() {
        Bytes bytes = seeds_[below(seeds_.size())];
        for (size_t i = 1 + below(3); i > 0; i--) {
            change(bytes);
        }
        return bytes;
    }

   private:
    size_t below(size_t n) {
        return random_() % n;
    }

    void change(Bytes& bytes) {
        if (bytes.size() < 2) {
            return;
        }
        // Half of the changes go to the first bytes: sizes and types are there.
        const size_t place = 1 +
                below(below(2) ? bytes.size() - 1
                               : std::min<size_t>(bytes.size() - 1, 600));
        switch (below(5)) {
            case 0:
                bytes[place] ^= uint8_t(1 << below(8));
                break;
            case 1:
                bytes[place] = uint8_t(random_());
                break;
            case 2:
                bytes.resize(place);
                break;
            case 3: { // a size that is too large, or nearly right
                const uint64_t words[] = {
                        0,
                        1,
                        uint64_t(-1),
                        uint64_t(1) << 63,
                        uint64_t(1) << 40,
                        uint64_t(1) << 31,
                        bytes.size()};
                const uint64_t word = words[below(7)];
                const size_t size = 1 << below(4);
                std::memcpy(
                        &bytes[place],
                        &word,
                        std::min(size, bytes.size() - place));
                break;
            }
            case 4: { // a piece from elsewhere
                const Bytes& other = seeds_[below(seeds_.size())];
                const size_t from = below(other.size());
                const size_t n = std::min<size_t>(
                        below(64),
                        std::min(other.size() - from, bytes.size() - place));
                std::copy_n(other.begin() + from, n, bytes.begin() + place);
                break;
            }
        }
    }

    std::vector<Bytes> seeds_;
    std::mt19937 random_{12345};
};

} // namespace

void* operator new(size_t size) {
    if (size > kLargestAllocation) {
        std::fprintf(stderr, "allocation of %zu bytes\n", size);
        std::abort();
    }
    if (void* memory = std::malloc(size)) {
        return memory;
    }
    throw std::bad_alloc();
}

void operator delete(void* memory) noexcept {
    std::free(memory);
}

void operator delete(void* memory, size_t) noexcept {
    std::free(memory);
}

int main(int argc, char** argv) {
    if (argc == 3 && std::strcmp(argv[1], "seeds") == 0) {
        int i = 0;
        for (const Bytes& seed : faiss_flashgmm::fuzz_seeds()) {
            std::ofstream(argv[2] + ("/seed" + std::to_string(i++)))
                    .write(reinterpret_cast<const char*>(seed.data()),
                           seed.size());
        }
        return 0;
    }
    const int n = argc > 1 ? std::atoi(argv[1]) : 20000;
    const auto seeds = faiss_flashgmm::fuzz_seeds();
    for (const Bytes& seed : seeds) {
        LLVMFuzzerTestOneInput(seed.data(), seed.size());
    }
    Mutator mutator(seeds);
    for (int i = 0; i < n; i++) {
        const Bytes bytes = mutator.next();
        LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    }
    std::printf("%d inputs\n", n);
}
