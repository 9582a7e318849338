#include <faiss_flashgmm/cpu/BlasThreadScope.h>

#include <mutex>

// Weak: null where the BLAS that is linked is not OpenBLAS.
extern "C" {
__attribute__((weak)) int openblas_get_num_threads(void);
__attribute__((weak)) void openblas_set_num_threads(int);
}

namespace faiss_flashgmm {

namespace {

std::mutex mutex;
int depth = 0;
int saved_threads = 1;

} // namespace

BlasThreadScope::BlasThreadScope() {
    if (!openblas_get_num_threads || !openblas_set_num_threads) {
        return;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    if (depth++ == 0) {
        saved_threads = openblas_get_num_threads();
        openblas_set_num_threads(1);
    }
}

BlasThreadScope::~BlasThreadScope() {
    if (!openblas_get_num_threads || !openblas_set_num_threads) {
        return;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    if (--depth == 0) {
        openblas_set_num_threads(saved_threads);
    }
}

} // namespace faiss_flashgmm
