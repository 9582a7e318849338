#pragma once

#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <faiss_flashgmm/gpu/CudaBackend.h>
#include <faiss_flashgmm/gpu/utils/Buffer.h>
#include <faiss_flashgmm/gpu/utils/CudaError.h>

#define SKIP_WITHOUT_DEVICES(count)                                      \
    if (const std::string why = CudaBackend::why_unavailable((count)-1); \
        !why.empty()) {                                                  \
        GTEST_SKIP() << why;                                             \
    }
#define SKIP_WITHOUT_DEVICE() SKIP_WITHOUT_DEVICES(1)

namespace faiss_flashgmm {

template <class T>
gpu::DeviceBuffer<T> on_device(const std::vector<T>& v) {
    static gpu::DeviceMemory memory;
    gpu::DeviceBuffer<T> buffer(memory);
    buffer.reserve(v.size(), "test data");
    FLASHGMM_CUDA(cudaMemcpy(
            buffer.get(),
            v.data(),
            v.size() * sizeof(T),
            cudaMemcpyHostToDevice));
    return buffer;
}

/// Largest difference of two statistics, relative to the scale of each kind.
inline double difference(const SufficientStats& a, const SufficientStats& b) {
    double worst = 0;
    const auto compare = [&](auto x, auto y) {
        double scale = 1e-300;
        double error = 0;
        for (size_t i = 0; i < x.size(); i++) {
            scale = std::max(scale, std::abs(y[i]));
            error = std::max(error, std::abs(x[i] - y[i]));
        }
        worst = std::max(worst, error / scale);
    };
    compare(a.counts(), b.counts());
    compare(a.squared(), b.squared());
    compare(a.sums(), b.sums());
    constexpr auto kL = SufficientStats::kLogLikelihood;
    return std::max(worst, std::abs(a.scalar(kL) / b.scalar(kL) - 1));
}

} // namespace faiss_flashgmm
