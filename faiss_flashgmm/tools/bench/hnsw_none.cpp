#include <faiss_flashgmm/tools/bench/searches.h>

namespace faiss_flashgmm {

bool has_hnsw() {
    return false;
}

void bench_hnsw(const BenchCase&, const SearchTiming&, BenchRows&) {}

} // namespace faiss_flashgmm
