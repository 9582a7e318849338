#include <faiss_flashgmm/gpu/DeviceMixture.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include <faiss_flashgmm/gpu/kernels/ConditionRows.cuh>

namespace faiss_flashgmm::gpu {

namespace {

/// Larger coordinates of a mean, in conditioned units, take the dense way.
constexpr float kLargestMean = 30000;

/// By their bits: compilers turn this loop, unlike one of floats, into vectors.
float largest_magnitude(const std::vector<float>& v) {
    uint32_t largest = 0;
    for (const float x : v) {
        largest = std::max(largest, std::bit_cast<uint32_t>(x) & 0x7FFFFFFF);
    }
    return std::bit_cast<float>(largest);
}

double rounding_slack(const Mixture& mixture, double global_variance) {
    const double d = double(mixture.d);
    const double e = std::ldexp(1.0, -11) * std::sqrt(d * global_variance);
    double slack = 0;
    for (const double variance : mixture.variances) {
        slack = std::max(
                slack,
                (2 * std::sqrt(d * variance) * e + e * e) *
                        std::numbers::log2e / (2 * variance));
    }
    return slack;
}

} // namespace

void DeviceMixture::upload(const Mixture& mixture, double global_variance) {
    copy(mixture);
    unit_ = best_matrix_unit();
    if (unit_ != MatrixUnit::none &&
        context_.options.matrix_unit == CudaMatrixUnit::mma) {
        unit_ = MatrixUnit::mma;
    }
    slack_bits_ = rounding_slack(mixture, global_variance);
    sparse_ = context_.options.precision != CudaPrecision::reference &&
            unit_ != MatrixUnit::none &&
            largest_magnitude(mixture.means) < kLargestMean &&
            (!context_.refines() || slack_bits_ < kMostSlack);
    number_ += 2; // not the next of any other
    if (sparse_) {
        condition();
    } else {
        former_ = {};
    }
}

void DeviceMixture::condition() {
    const bool follows = former_.means == half_components_.means &&
            former_.tiles == half_components_.tiles &&
            former_.d_padded == half_components_.d_padded;
    number_ -= follows;
    moves_.reserve(half_components_.tiles * HalfComponents::kTile, "the moves");
    condition_means(
            components_,
            half_components_,
            follows ? moves_.get() : nullptr,
            context_.compute);
    former_ = half_components_;
}

void DeviceMixture::copy(const Mixture& mixture) {
    const int64_t k = mixture.k;
    const int64_t d = mixture.d;
    const int64_t k_padded = HalfComponents::padded(k);
    const int64_t d_padded = HalfLayout::padded(d);
    means_.reserve(k * d, "the means");
    precision_.reserve(k, "the precisions");
    offset_.reserve(k, "the offsets");
    half_means_.reserve(k_padded * d_padded, "the fp16 means");
    constants_.reserve(k_padded, "the components' constants");
    staging_.reserve(k * (d + 2), "the mixture");

    // The former upload may still be reading the staging memory.
    context_.compute.synchronize();
    float* staged = staging_.get();
    std::memcpy(staged, mixture.means.data(), k * d * sizeof(float));
    std::vector<double> log2_norm(k);
    log2_base_ = -INFINITY;
    for (int64_t c = 0; c < k; ++c) {
        log2_norm[c] = std::log2(mixture.weights[c]) -
                0.5 * d *
                        std::log2(2 * std::numbers::pi * mixture.variances[c]);
        log2_base_ = std::max(log2_base_, log2_norm[c]);
    }
    for (int64_t c = 0; c < k; ++c) {
        staged[k * d + c] =
                float(std::numbers::log2e / (2 * mixture.variances[c]));
        staged[k * d + k + c] = float(log2_norm[c] - log2_base_);
    }
    const auto copy = [&](float* to, const float* from, int64_t size) {
        FLASHGMM_CUDA(cudaMemcpyAsync(
                to,
                from,
                size * sizeof(float),
                cudaMemcpyHostToDevice,
                context_.compute));
    };
    copy(means_.get(), staged, k * d);
    copy(precision_.get(), staged + k * d, k);
    copy(offset_.get(), staged + k * d + k, k);
    components_ = {k, d, means_.get(), precision_.get(), offset_.get()};
    half_components_ = {
            k_padded / HalfComponents::kTile,
            d_padded,
            half_means_.get(),
            constants_.get()};
}

} // namespace faiss_flashgmm::gpu
