#pragma once

#include <array>
#include <cstdint>

#include <faiss_flashgmm/em/EMOptions.h>
#include <faiss_flashgmm/em/Mixture.h>
#include <faiss_flashgmm/gpu/DeviceContext.h>
#include <faiss_flashgmm/gpu/kernels/MaximizeMixture.cuh>
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

    /// Bytes of device memory.
    static int64_t bytes(int64_t k, int64_t d);

    /// A mixture in conditioned units.
    void upload(const Mixture& mixture, const Conditioning& conditioning);
    /// The same mixture as on another device.
    void copy(const DeviceMixture& other);
    /** Becomes what maximizes the statistics (PairSums::stats); waits.
     *
     * @param facts     output
     * @return          false: some components are empty. Nothing has changed.
     */
    bool maximize(
            const double* stats,
            const EMOptions& options,
            MixtureFacts& facts);
    /// To host memory; waits.
    void read(Mixture& mixture) const;

    int64_t k() const {
        return k_;
    }
    int64_t d() const {
        return d_;
    }
    /// Whether the tensor cores serve the mixture.
    bool sparse() const {
        return sparse_;
    }
    Components components() const;
    /// If sparse().
    HalfComponents half_components() const;
    /// Taken off every offset, so that fp32 keeps its digits.
    double log2_base() const {
        return facts_.log2_base;
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
    struct Arrays {
        explicit Arrays(DeviceMemory& memory)
                : means(memory),
                  precision(memory),
                  offset(memory),
                  variances(memory),
                  weights(memory) {}
        void reserve(int64_t k, int64_t d);
        MixtureArrays view() const;

        DeviceBuffer<float> means, precision, offset;
        DeviceBuffer<double> variances, weights;
    };

    void reserve(int64_t k, int64_t d);
    MixtureFacts read_facts();
    void adopt(const MixtureFacts& facts);
    void condition();

    DeviceContext& context_;
    int64_t k_ = 0;
    int64_t d_ = 0;
    double scale_ = 1;
    double global_variance_ = 1;

    /// The present mixture, and where the next one grows.
    std::array<Arrays, 2> arrays_{
            Arrays{context_.memory},
            Arrays{context_.memory}};
    int current_ = 0;
    DeviceBuffer<float> shift_{context_.memory};
    DeviceBuffer<double> residual_{context_.memory};
    DeviceBuffer<MixtureFacts> device_facts_{context_.memory};
    PinnedBuffer<MixtureFacts> host_facts_;
    DeviceBuffer<__half> half_means_{context_.memory};
    DeviceBuffer<float2> constants_{context_.memory};
    DeviceBuffer<float2> moves_{context_.memory};

    MixtureFacts facts_{};
    double slack_bits_ = 0;
    bool sparse_ = false;
    MatrixUnit unit_ = MatrixUnit::none;
    int64_t number_ = 0;
    HalfComponents former_; ///< whose means half_means_ holds, if any
};

} // namespace faiss_flashgmm::gpu
