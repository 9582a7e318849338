#include <faiss_flashgmm/gpu/CudaBackend.h>

#include <algorithm>
#include <memory>
#include <numbers>

#include <faiss_flashgmm/gpu/Assignment.h>
#include <faiss_flashgmm/gpu/DeviceContext.h>
#include <faiss_flashgmm/gpu/DeviceMixture.h>
#include <faiss_flashgmm/gpu/DeviceRows.h>
#include <faiss_flashgmm/gpu/EStep.h>
#include <faiss_flashgmm/gpu/Launch.h>

namespace faiss_flashgmm {

using namespace gpu;

struct CudaBackend::Impl {
    explicit Impl(const CudaOptions& options) : context(options) {}

    DeviceContext context;
    DeviceRows rows{context};
    DeviceMixture mixture{context};
    Launch launch{context, mixture};
    EStep e_step{context, mixture, launch};
    Assignment assignment{context, mixture, launch};
    double log_density_offset = 0;

    template <class Work>
    void for_resident_rows(
            int64_t n,
            const float* x,
            const float* weights,
            Work&& work) {
        rows.for_each(n, x, weights, launch.rows(), mixture.sparse(), work);
    }
};

CudaBackend::CudaBackend(CudaOptions options) {
    const std::string why = why_unavailable(options.device);
    FLASHGMM_THROW_IF_NOT_FMT(why.empty(), "%s", why.c_str());
    FLASHGMM_THROW_IF_NOT_FMT(
            options.min_responsibility >= 0 && options.min_responsibility < 1,
            "min_responsibility = %g is not in [0, 1)",
            options.min_responsibility);
    DeviceScope scope(options.device);
    impl_ = std::make_unique<Impl>(options);
}

CudaBackend::~CudaBackend() {
    int former = 0;
    if (cudaGetDevice(&former) == cudaSuccess) {
        FLASHGMM_CUDA_NO_THROW(cudaSetDevice(impl_->context.options.device));
        impl_.reset();
        FLASHGMM_CUDA_NO_THROW(cudaSetDevice(former));
    }
}

std::string CudaBackend::why_unavailable(int device) {
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess) {
        cudaGetLastError();
        return format("no usable CUDA device: %s", cudaGetErrorString(code));
    }
    if (device < 0 || device >= count) {
        return format(
                "there is no CUDA device %d: the driver reports %d",
                device,
                count);
    }
    return "";
}

int64_t CudaBackend::preferred_chunk(int64_t, int64_t d) const {
    return std::max<int64_t>(HalfRows::kPadding, (int64_t(1) << 30) / (4 * d));
}

void CudaBackend::begin(
        const Mixture& mixture,
        const Conditioning& conditioning) {
    FLASHGMM_THROW_IF_NOT_FMT(
            mixture.k > 0 && mixture.d > 0 && mixture.k < (int64_t(1) << 31),
            "cannot work with k = %lld components of dimension d = %lld",
            static_cast<long long>(mixture.k),
            static_cast<long long>(mixture.d));
    Impl& impl = *impl_;
    DeviceScope scope(impl.context.options.device);
    impl.mixture.upload(mixture, conditioning.global_variance);
    impl.rows.set_conditioning(mixture.d, conditioning);
    impl.log_density_offset = conditioning.log_density_offset();
    impl.e_step.begin();
}

void CudaBackend::accumulate(int64_t n, const float* x, const float* weights) {
    if (n == 0) {
        return;
    }
    Impl& impl = *impl_;
    DeviceScope scope(impl.context.options.device);
    impl.for_resident_rows(n, x, weights, [&](ResidentRows& rows, int64_t) {
        impl.e_step.accumulate(rows);
    });
}

SufficientStats& CudaBackend::finish() {
    DeviceScope scope(impl_->context.options.device);
    return impl_->e_step.finish();
}

void CudaBackend::assign(
        int64_t n,
        const float* x,
        int64_t m,
        int64_t* components,
        float* log_scores,
        float* log_z) {
    Impl& impl = *impl_;
    FLASHGMM_THROW_IF_NOT_FMT(
            m >= 1 && m <= impl.mixture.k(),
            "m = %lld is not between 1 and k = %lld",
            static_cast<long long>(m),
            static_cast<long long>(impl.mixture.k()));
    if (n == 0) {
        return;
    }
    DeviceScope scope(impl.context.options.device);
    const float offset =
            float(impl.log_density_offset +
                  impl.mixture.log2_base() * std::numbers::ln2);
    impl.for_resident_rows(
            n, x, nullptr, [&](const ResidentRows& rows, int64_t first) {
                impl.assignment.assign(
                        rows,
                        m,
                        offset,
                        components + first * m,
                        log_scores + first * m,
                        log_z ? log_z + first : nullptr);
            });
}

void CudaBackend::keep_rows(const float* x, int64_t size) {
    DeviceScope scope(impl_->context.options.device);
    impl_->rows.keep(x, size);
}

int64_t CudaBackend::dense_rows() const {
    return impl_->e_step.dense_rows();
}

bool CudaBackend::on_tensor_cores() const {
    return impl_->mixture.sparse();
}

const CudaTimes& CudaBackend::times() const {
    return impl_->context.timer.times;
}

} // namespace faiss_flashgmm
