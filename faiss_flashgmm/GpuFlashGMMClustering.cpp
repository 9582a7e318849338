#include <faiss_flashgmm/GpuFlashGMMClustering.h>

#include <cstdio>

#include <faiss_flashgmm/gpu/CudaRows.h>
#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

bool GpuFlashGMMClustering::available(int device) {
    return why_unavailable(device).empty();
}

std::string GpuFlashGMMClustering::why_unavailable(int device) {
    return CudaBackend::why_unavailable(device);
}

std::unique_ptr<Backend> GpuFlashGMMClustering::make_backend() const {
    std::string why;
    for (const int device : cuda.devices) {
        if (why.empty()) {
            why = why_unavailable(device);
        }
    }
    if (!why.empty() && cpu_fallback) {
        fprintf(stderr, "WARNING %s: using the CPU\n", why.c_str());
        return FlashGMMClustering::make_backend();
    }
    FLASHGMM_THROW_IF_NOT_FMT(
            why.empty(),
            "%s (FlashGMMClustering and cpu_fallback do without)",
            why.c_str());
    return std::make_unique<CudaBackend>(cuda);
}

std::unique_ptr<RowSource> GpuFlashGMMClustering::rows_in_memory(
        idx_t n,
        RowView x,
        const float* weights) const {
    if (CudaRows::on_device(x.data)) {
        return std::make_unique<CudaRows>(n, int64_t(d), x, weights);
    }
    return FlashGMMClustering::rows_in_memory(n, x, weights);
}

} // namespace faiss_flashgmm
