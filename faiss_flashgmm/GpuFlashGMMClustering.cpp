#include <faiss_flashgmm/GpuFlashGMMClustering.h>

#include <cstdio>

#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

bool GpuFlashGMMClustering::available(int device) {
    return why_unavailable(device).empty();
}

std::string GpuFlashGMMClustering::why_unavailable(int device) {
    return CudaBackend::why_unavailable(device);
}

void GpuFlashGMMClustering::train(
        idx_t n,
        const float* x,
        faiss::Index& index,
        const float* weights) {
    // Once train() returns the caller may change the rows again.
    struct Reset {
        GpuFlashGMMClustering& clustering;
        ~Reset() {
            clustering.stable_rows_ = nullptr;
            clustering.stable_size_ = 0;
        }
    } reset{*this};
    stable_rows_ = x;
    stable_size_ = int64_t(n) * int64_t(d);
    FlashGMMClustering::train(n, x, index, weights);
}

std::unique_ptr<Backend> GpuFlashGMMClustering::make_backend() const {
    const std::string why = why_unavailable(cuda.device);
    if (!why.empty() && cpu_fallback) {
        fprintf(stderr, "WARNING %s: using the CPU\n", why.c_str());
        return FlashGMMClustering::make_backend();
    }
    FLASHGMM_THROW_IF_NOT_FMT(
            why.empty(),
            "%s (FlashGMMClustering and cpu_fallback do without)",
            why.c_str());
    auto backend = std::make_unique<CudaBackend>(cuda);
    if (stable_rows_ != nullptr) {
        backend->keep_rows(stable_rows_, stable_size_);
    }
    return backend;
}

} // namespace faiss_flashgmm
