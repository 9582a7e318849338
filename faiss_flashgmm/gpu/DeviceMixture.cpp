#include <faiss_flashgmm/gpu/DeviceMixture.h>

#include <cmath>
#include <numbers>

#include <faiss_flashgmm/gpu/kernels/ConditionRows.cuh>

namespace faiss_flashgmm::gpu {

namespace {

/// Larger coordinates of a mean, in conditioned units, take the dense way.
constexpr float kLargestMean = 30000;

} // namespace

int64_t DeviceMixture::bytes(int64_t k, int64_t d) {
    const int64_t arrays = k * (4 * d + 4 + 4 + 8 + 8);
    const int64_t half = HalfComponents::padded(k) *
            (2 * HalfLayout::padded(d) + 2 * int64_t(sizeof(float2)));
    return 2 * arrays + half + 8 * k + 4 * d + int64_t(sizeof(MixtureFacts));
}

void DeviceMixture::Arrays::reserve(int64_t k, int64_t d) {
    means.reserve(k * d, "the means");
    precision.reserve(k, "the precisions");
    offset.reserve(k, "the offsets");
    variances.reserve(k, "the variances");
    weights.reserve(k, "the weights");
}

MixtureArrays DeviceMixture::Arrays::view() const {
    return {means.get(),
            variances.get(),
            weights.get(),
            precision.get(),
            offset.get()};
}

void DeviceMixture::reserve(int64_t k, int64_t d) {
    k_ = k;
    d_ = d;
    for (Arrays& arrays : arrays_) {
        arrays.reserve(k, d);
    }
    shift_.reserve(d, "the shift of the rows");
    residual_.reserve(k, "the components' distances");
    device_facts_.reserve(1, "the facts of the mixture");
    host_facts_.reserve(1, "the facts of the mixture");
    const int64_t k_padded = HalfComponents::padded(k);
    half_means_.reserve(k_padded * HalfLayout::padded(d), "the fp16 means");
    constants_.reserve(k_padded, "the components' constants");
    moves_.reserve(k_padded, "the moves of the means");
}

void DeviceMixture::upload(
        const Mixture& mixture,
        const Conditioning& conditioning) {
    reserve(mixture.k, mixture.d);
    scale_ = conditioning.scale;
    global_variance_ = conditioning.global_variance;
    const MixtureArrays arrays = arrays_[current_].view();
    const auto copy = [&](auto* to, const auto& from) {
        // From pageable memory: done with it on return.
        FLASHGMM_CUDA(cudaMemcpyAsync(
                to,
                from.data(),
                from.size() * sizeof(from[0]),
                cudaMemcpyHostToDevice,
                context_.compute));
    };
    copy(arrays.means, mixture.means);
    copy(arrays.variances, mixture.variances);
    copy(arrays.weights, mixture.weights);
    copy(shift_.get(), conditioning.shift);
    FoldConstants fold{k_, d_, arrays, device_facts_.get()};
    fold.launch(context_.compute);
    adopt(read_facts());
}

void DeviceMixture::copy(const DeviceMixture& other) {
    reserve(other.k_, other.d_);
    scale_ = other.scale_;
    global_variance_ = other.global_variance_;
    const MixtureArrays from = other.arrays_[other.current_].view();
    const MixtureArrays to = arrays_[current_].view();
    const auto copy = [&](auto* to, const auto* from, int64_t size) {
        FLASHGMM_CUDA(cudaMemcpyPeerAsync(
                to,
                context_.device,
                from,
                other.context_.device,
                size * sizeof(*to),
                context_.compute));
    };
    copy(to.means, from.means, k_ * d_);
    copy(to.variances, from.variances, k_);
    copy(to.weights, from.weights, k_);
    copy(to.precision, from.precision, k_);
    copy(to.offset, from.offset, k_);
    copy(shift_.get(), other.shift_.get(), d_);
    adopt(other.facts_);
}

bool DeviceMixture::maximize(
        const double* stats,
        const EMOptions& options,
        MixtureFacts& facts) {
    MaximizeMixture step;
    step.k = k_;
    step.d = d_;
    step.stats = stats;
    step.former = arrays_[current_].view();
    step.updated = arrays_[current_ ^ 1].view();
    step.residual = residual_.get();
    step.facts = device_facts_.get();
    step.empty_threshold = options.empty_threshold;
    step.floor = options.variance_floor * global_variance_;
    step.tied = options.variance == VarianceModel::tied;
    step.uniform = options.weights == WeightModel::uniform;
    step.constraint = options.constraint;
    step.frozen = options.frozen_means;
    step.scale = scale_;
    step.shift = shift_.get();
    context_.timer.time(&CudaTimes::maximize, context_.compute, [&] {
        step.launch(context_.compute);
    });
    facts = read_facts();
    if (facts.empty > 0) {
        return false;
    }
    current_ ^= 1;
    adopt(facts);
    return true;
}

MixtureFacts DeviceMixture::read_facts() {
    FLASHGMM_CUDA(cudaMemcpyAsync(
            host_facts_.get(),
            device_facts_.get(),
            sizeof(MixtureFacts),
            cudaMemcpyDeviceToHost,
            context_.compute));
    context_.compute.synchronize();
    return *host_facts_.get();
}

/// The arrays hold a new mixture: its fp16 form, if there is use for one.
void DeviceMixture::adopt(const MixtureFacts& facts) {
    facts_ = facts;
    const double e =
            std::ldexp(1.0, -11) * std::sqrt(double(d_) * global_variance_);
    // Largest for the least variance.
    const double variance = facts.least_variance;
    slack_bits_ = (2 * std::sqrt(double(d_) * variance) * e + e * e) *
            std::numbers::log2e / (2 * variance);
    unit_ = best_matrix_unit();
    if (unit_ != MatrixUnit::none &&
        context_.options.matrix_unit == CudaMatrixUnit::mma) {
        unit_ = MatrixUnit::mma;
    }
    sparse_ = context_.options.precision != CudaPrecision::reference &&
            unit_ != MatrixUnit::none && facts.largest_mean < kLargestMean &&
            (!context_.refines() || slack_bits_ < kMostSlack);
    number_ += 2; // not the next of any other
    if (sparse_) {
        condition();
    } else {
        former_ = {};
    }
}

void DeviceMixture::condition() {
    const HalfComponents half = half_components();
    const bool follows = former_.means == half.means &&
            former_.tiles == half.tiles && former_.d_padded == half.d_padded;
    number_ -= follows;
    condition_means(
            components(),
            half,
            follows ? moves_.get() : nullptr,
            context_.compute);
    former_ = half;
}

void DeviceMixture::read(Mixture& mixture) const {
    const MixtureArrays arrays = arrays_[current_].view();
    const auto copy = [&](auto& to, const auto* from) {
        FLASHGMM_CUDA(cudaMemcpyAsync(
                to.data(),
                from,
                to.size() * sizeof(to[0]),
                cudaMemcpyDeviceToHost,
                context_.compute));
    };
    mixture = Mixture(k_, d_);
    copy(mixture.means, arrays.means);
    copy(mixture.variances, arrays.variances);
    copy(mixture.weights, arrays.weights);
    context_.compute.synchronize();
}

Components DeviceMixture::components() const {
    const MixtureArrays arrays = arrays_[current_].view();
    return {k_, d_, arrays.means, arrays.precision, arrays.offset};
}

HalfComponents DeviceMixture::half_components() const {
    return {HalfComponents::padded(k_) / HalfComponents::kTile,
            HalfLayout::padded(d_),
            half_means_.get(),
            constants_.get()};
}

} // namespace faiss_flashgmm::gpu
