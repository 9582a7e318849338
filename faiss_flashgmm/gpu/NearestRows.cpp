#include <faiss_flashgmm/gpu/NearestRows.h>

#include <string>

#include <faiss_flashgmm/gpu/CudaBackend.h>
#include <faiss_flashgmm/gpu/NearSearch.h>
#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

using namespace gpu;

struct NearestRows::Impl : NearSearch {
    using NearSearch::NearSearch;
};

NearestRows::NearestRows(
        const CudaOptions& options,
        int64_t n,
        int64_t d,
        RowView base,
        bool inner_product) {
    FLASHGMM_THROW_IF_NOT_FMT(
            options.devices.size() == 1,
            "neighbors are looked for on one CUDA device, %zu are given",
            options.devices.size());
    const std::string why = CudaBackend::why_unavailable(options.devices[0]);
    FLASHGMM_THROW_IF_NOT_FMT(why.empty(), "%s", why.c_str());
    FLASHGMM_THROW_IF_NOT_FMT(
            options.memory_limit >= 0,
            "memory_limit = %lld bytes",
            static_cast<long long>(options.memory_limit));
    FLASHGMM_THROW_IF_NOT_FMT(
            n >= 1 && n <= kMostRows,
            "a base of %lld rows, must be 1 to %lld",
            static_cast<long long>(n),
            static_cast<long long>(kMostRows));
    FLASHGMM_THROW_IF_NOT_FMT(
            d >= 1, "d = %lld must be at least 1", static_cast<long long>(d));
    const DeviceScope scope(options.devices[0]);
    impl_ = std::make_unique<Impl>(options, n, d, base, inner_product);
}

NearestRows::~NearestRows() = default;

void NearestRows::nearest(
        int64_t n,
        RowView x,
        int64_t k,
        const int64_t* self,
        float* distances,
        int64_t* ids) {
    FLASHGMM_THROW_IF_NOT_FMT(
            k >= 1 && k <= kMostNeighbors,
            "%lld neighbors, must be 1 to %lld",
            static_cast<long long>(k),
            static_cast<long long>(kMostNeighbors));
    FLASHGMM_THROW_IF_NOT_FMT(
            n >= 0, "n = %lld rows", static_cast<long long>(n));
    if (n > 0) {
        const DeviceScope scope(impl_->context.device);
        impl_->nearest(n, x, k, self, distances, ids);
    }
}

void NearestRows::within(
        int64_t n,
        RowView x,
        const float* radii,
        const std::function<void(int64_t, std::span<const std::vector<Near>>)>&
                visit) {
    FLASHGMM_THROW_IF_NOT_FMT(
            n >= 0, "n = %lld rows", static_cast<long long>(n));
    if (n > 0) {
        const DeviceScope scope(impl_->context.device);
        impl_->within(n, x, radii, visit);
    }
}

int64_t NearestRows::peak_device_bytes() const {
    return impl_->context.memory.peak();
}

} // namespace faiss_flashgmm
