#pragma once

#include <cstdint>

#include <faiss_flashgmm/em/Mixture.h>
#include <faiss_flashgmm/gpu/DeviceContext.h>
#include <faiss_flashgmm/gpu/kernels/Params.h>
#include <faiss_flashgmm/gpu/kernels/SparsePosterior.cuh>
#include <faiss_flashgmm/gpu/utils/Buffer.h>

namespace faiss_flashgmm::gpu {

/// A mixture on the device, in the forms that the kernels read.
class DeviceMixture {
   public:
    /// Past so many slack_bits() fp16 cannot choose the components any more.
    static constexpr double kMostSlack = 24;

    explicit DeviceMixture(DeviceContext& context) : context_(context) {}

    /// Copies a mixture in conditioned units and folds its constants.
    void upload(const Mixture& mixture, double global_variance);

    int64_t k() const {
        return components_.k;
    }
    int64_t d() const {
        return components_.d;
    }
    /// Whether the tensor cores serve the mixture.
    bool sparse() const {
        return sparse_;
    }
    const Components& components() const {
        return components_;
    }
    /// Set if sparse().
    const HalfComponents& half_components() const {
        return half_components_;
    }
    /// Taken off every offset, so that fp32 keeps its digits.
    double log2_base() const {
        return log2_base_;
    }
    /** How wrong fp16 can make a logit, in bits, for a row at the typical
     * distance from a component: |x - mu|^2 moves by 2 |x - mu| e + e^2 if
     * the rounding moves x - mu by e, and e is about 2^-11 |x|.
     */
    double slack_bits() const {
        return slack_bits_;
    }
    /// Which the tensor cores are used by, if sparse().
    MatrixUnit matrix_unit() const {
        return unit_;
    }
    /** Numbers the mixtures. Those whose numbers follow each other have the
     * same shape, and moves() are from one to the next.
     */
    int64_t number() const {
        return number_;
    }
    /// See condition_means.
    const float2* moves() const {
        return moves_.get();
    }

   private:
    void copy(const Mixture& mixture);
    void condition();

    DeviceContext& context_;
    DeviceBuffer<float> means_;
    DeviceBuffer<float> precision_;
    DeviceBuffer<float> offset_;
    DeviceBuffer<__half> half_means_;
    DeviceBuffer<float2> constants_;
    DeviceBuffer<float2> moves_;
    PinnedBuffer<float> staging_;

    Components components_;
    HalfComponents half_components_;
    double log2_base_ = 0;
    double slack_bits_ = 0;
    bool sparse_ = false;
    MatrixUnit unit_ = MatrixUnit::none;
    int64_t number_ = 0;
    HalfComponents former_; ///< whose means half_means_ holds, if any
};

} // namespace faiss_flashgmm::gpu
