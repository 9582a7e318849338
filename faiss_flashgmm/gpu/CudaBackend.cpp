#include <faiss_flashgmm/gpu/CudaBackend.h>

#include <algorithm>
#include <memory>
#include <numbers>
#include <vector>

#include <faiss_flashgmm/gpu/Assignment.h>
#include <faiss_flashgmm/gpu/DeviceContext.h>
#include <faiss_flashgmm/gpu/DeviceMixture.h>
#include <faiss_flashgmm/gpu/DeviceMoments.h>
#include <faiss_flashgmm/gpu/DeviceRows.h>
#include <faiss_flashgmm/gpu/EStep.h>
#include <faiss_flashgmm/gpu/Launch.h>
#include <faiss_flashgmm/gpu/MeanSeeding.h>
#include <faiss_flashgmm/utils/ParallelGuard.h>

namespace faiss_flashgmm {

using namespace gpu;

namespace {

/// All that there is on one device.
struct Device {
    Device(int number, const CudaOptions& options) : context(number, options) {}

    DeviceContext context;
    DeviceRows rows{context};
    DeviceMixture mixture{context};
    Launch launch{context, mixture};
    EStep e_step{context, mixture, launch};
    Assignment assignment{context, mixture, launch};
    DeviceMoments moments{context};
    Event done; ///< what the first device waits for

    /// Calls work(rows, first row) with all rows on the device.
    template <class Work>
    void for_each(const Rows& all, Work&& work) {
        rows.for_each(all, launch.rows(), mixture.sparse(), work);
    }
};

/// Copies between the devices take the direct way where there is one.
void connect(int from, int to) {
    int possible = 0;
    FLASHGMM_CUDA(cudaDeviceCanAccessPeer(&possible, from, to));
    if (possible) {
        const DeviceScope scope(from);
        const cudaError_t code = cudaDeviceEnablePeerAccess(to, 0);
        if (code == cudaErrorPeerAccessAlreadyEnabled) {
            cudaGetLastError();
        } else {
            FLASHGMM_CUDA(code);
        }
    }
}

} // namespace

struct CudaBackend::Impl {
    explicit Impl(const CudaOptions& options);

    const CudaOptions options;
    std::vector<std::unique_ptr<Device>> devices;
    int64_t d = 0;
    double log_density_offset = 0;
    bool gathered = false; ///< the first device has all statistics

    Device& first() {
        return *devices[0];
    }
    int64_t count() const {
        return int64_t(devices.size());
    }

    /// Calls work(device, its number), each device in a thread of its own.
    template <class Work>
    void on_each_device(Work&& work) {
        ParallelGuard guard;
#pragma omp parallel for schedule(static, 1) \
        num_threads(int(count())) if (count() > 1)
        for (int64_t i = 0; i < count(); ++i) {
            guard.run([&] {
                const DeviceScope scope(devices[i]->context.device);
                work(*devices[i], i);
            });
        }
        try {
            guard.rethrow();
        } catch (const OutOfMemory&) {
            make_devices(); // what is held may be what is missing next time
            throw;
        }
    }

    /// Shares rows out: work(device, its number, first row, rows).
    template <class Work>
    void share_out(const Rows& rows, Work&& work) {
        on_each_device([&](Device& device, int64_t i) {
            const int64_t begin = rows.n * i / count();
            const int64_t end = rows.n * (i + 1) / count();
            if (begin < end) {
                Rows share = rows;
                share.n = end - begin;
                share.x = rows.x.from(begin * d);
                share.weights = rows.weights ? rows.weights + begin : nullptr;
                work(device, i, begin, share);
            }
        });
    }

    void make_devices();
    void gather();
};

CudaBackend::Impl::Impl(const CudaOptions& options) : options(options) {
    for (const int number : options.devices) {
        if (number != options.devices[0]) {
            connect(options.devices[0], number);
            connect(number, options.devices[0]);
        }
    }
    make_devices();
}

/// Anew, if there are any.
void CudaBackend::Impl::make_devices() {
    devices.clear();
    for (const int number : options.devices) {
        const DeviceScope scope(number);
        devices.push_back(std::make_unique<Device>(number, options));
    }
}

/// Adds the statistics up, in the order of the devices.
void CudaBackend::Impl::gather() {
    if (gathered) {
        return;
    }
    for (int64_t i = 1; i < count(); ++i) {
        Device& other = *devices[i];
        {
            const DeviceScope scope(other.context.device);
            other.done.record(other.context.compute);
        }
        const DeviceScope scope(first().context.device);
        first().context.compute.wait(other.done);
        first().e_step.add(other.e_step);
    }
    gathered = true;
}

CudaBackend::CudaBackend(CudaOptions options) {
    FLASHGMM_THROW_IF_NOT_FMT(
            !options.devices.empty(), "the list of CUDA devices is empty");
    for (const int device : options.devices) {
        const std::string why = why_unavailable(device);
        FLASHGMM_THROW_IF_NOT_FMT(why.empty(), "%s", why.c_str());
        FLASHGMM_THROW_IF_NOT_FMT(
                std::ranges::count(options.devices, device) == 1,
                "CUDA device %d is listed twice",
                device);
    }
    FLASHGMM_THROW_IF_NOT_FMT(
            options.min_responsibility >= 0 && options.min_responsibility < 1,
            "min_responsibility = %g is not in [0, 1)",
            options.min_responsibility);
    FLASHGMM_THROW_IF_NOT_FMT(
            options.memory_limit >= 0,
            "memory_limit = %lld bytes",
            static_cast<long long>(options.memory_limit));
    impl_ = std::make_unique<Impl>(options);
}

CudaBackend::~CudaBackend() = default;

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
    return impl_->count() *
            std::max<int64_t>(HalfRows::kPadding, (1 << 28) / d);
}

int64_t CudaBackend::device_bytes(int64_t n, int64_t k, int64_t d) {
    const int64_t rows = HalfRows::padded_rows(n);
    return DeviceMixture::bytes(k, d) + Launch::bytes(rows, k, d) +
            DeviceMoments::bytes(d) + 8 * EStep::stats_size(k, d) + 4 * d;
}

void CudaBackend::begin_fit(int64_t n, int64_t k, int64_t d) {
    Impl& impl = *impl_;
    impl.d = d;
    const int64_t share = (n + impl.count() - 1) / impl.count();
    impl.on_each_device([&](Device& device, int64_t) {
        device.rows.set_dimension(d);
        device.rows.begin_fit(
                device_bytes(std::min(share, device.launch.rows()), k, d) +
                DeviceRows::bytes_of_slots());
        device.launch.expect(share);
    });
}

void CudaBackend::end_fit() {
    impl_->on_each_device([](Device& device, int64_t) {
        device.rows.end_fit();
        device.launch.expect(0);
    });
}

bool CudaBackend::has_rows(const RowKey& key) const {
    return std::ranges::all_of(impl_->devices, [&](const auto& device) {
        return device->rows.has(key);
    });
}

void CudaBackend::forget_rows(int64_t source) {
    impl_->on_each_device(
            [&](Device& device, int64_t) { device.rows.forget(source); });
}

std::string CudaBackend::add_moments(
        int64_t first,
        const Rows& rows,
        RowMoments& moments) {
    Impl& impl = *impl_;
    impl.d = int64_t(moments.pivot().size());
    std::vector<RowMoments> parts(impl.count(), RowMoments(moments.pivot()));
    std::vector<std::string> errors(impl.count());
    impl.share_out(
            rows,
            [&](Device& device, int64_t i, int64_t begin, const Rows& share) {
                device.rows.set_dimension(impl.d);
                device.rows.for_each(
                        share,
                        device.launch.rows(),
                        false,
                        [&](const ResidentRows& r, int64_t at) {
                            if (errors[i].empty()) {
                                errors[i] = device.moments.add(
                                        first + begin + at, r, parts[i]);
                            }
                        });
            });
    for (RowMoments& part : parts) {
        for (size_t i = 0; i < part.flat().size(); ++i) {
            moments.flat()[i] += part.flat()[i];
        }
    }
    for (const std::string& error : errors) {
        if (!error.empty()) {
            return error;
        }
    }
    return "";
}

void CudaBackend::draw_kmeans_pp(
        RowSource& rows,
        int64_t first,
        int64_t k,
        uint64_t seed,
        float* means,
        const std::function<void(int64_t)>& on_mean) {
    DeviceContext& context = impl_->first().context;
    try {
        const DeviceScope scope(context.device);
        seed_means(context, rows, first, k, seed, means, on_mean);
    } catch (const OutOfMemory&) {
        Backend::draw_kmeans_pp(rows, first, k, seed, means, on_mean);
    }
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
    impl.d = mixture.d;
    impl.log_density_offset = conditioning.log_density_offset();
    impl.gathered = false;
    impl.on_each_device([&](Device& device, int64_t) {
        device.rows.set_dimension(mixture.d);
        device.rows.set_conditioning(conditioning);
        device.mixture.upload(mixture, conditioning);
        device.e_step.begin();
        device.launch.secure();
    });
}

void CudaBackend::add_rows(const Rows& rows) {
    FLASHGMM_THROW_IF_NOT_FMT(
            impl_->first().mixture.k() > 0, "rows come after begin()");
    impl_->share_out(
            rows, [](Device& device, int64_t, int64_t, const Rows& share) {
                device.for_each(share, [&](ResidentRows& r, int64_t) {
                    device.e_step.accumulate(r);
                });
            });
}

SufficientStats& CudaBackend::finish() {
    impl_->gather();
    const DeviceScope scope(impl_->first().context.device);
    return impl_->first().e_step.finish();
}

bool CudaBackend::advance(
        const EMOptions& options,
        Sums& sums,
        MStepReport& report) {
    Impl& impl = *impl_;
    Device& first = impl.first();
    impl.gather();
    const double log2_base = first.mixture.log2_base();
    MixtureFacts facts;
    {
        const DeviceScope scope(first.context.device);
        if (!first.mixture.maximize(
                    first.e_step.device_stats(), options, facts)) {
            return false;
        }
        first.context.timer.collect();
    }
    sums = first.e_step.scalars(facts.sums, log2_base);
    report = {};
    report.at_floor = facts.at_floor;
    report.moved_mass = facts.moved_mass;
    report.imbalance = facts.imbalance;
    impl.gathered = false;
    impl.on_each_device([&](Device& device, int64_t i) {
        if (i > 0) {
            device.mixture.copy(first.mixture);
        }
        device.e_step.begin();
    });
    return true;
}

void CudaBackend::read_mixture(Mixture& mixture) {
    const DeviceScope scope(impl_->first().context.device);
    impl_->first().mixture.read(mixture);
}

void CudaBackend::assign(
        int64_t n,
        RowView x,
        int64_t m,
        int64_t* components,
        float* log_scores,
        float* log_z) {
    Impl& impl = *impl_;
    const DeviceMixture& mixture = impl.first().mixture;
    FLASHGMM_THROW_IF_NOT_FMT(
            m >= 1 && m <= mixture.k(),
            "m = %lld is not between 1 and k = %lld",
            static_cast<long long>(m),
            static_cast<long long>(mixture.k()));
    const float offset = float(
            impl.log_density_offset + mixture.log2_base() * std::numbers::ln2);
    impl.share_out(
            {n, x},
            [&](Device& device, int64_t, int64_t begin, const Rows& share) {
                device.for_each(share, [&](const ResidentRows& r, int64_t at) {
                    const int64_t to = begin + at;
                    device.assignment.assign(
                            r,
                            m,
                            offset,
                            components + to * m,
                            log_scores + to * m,
                            log_z ? log_z + to : nullptr);
                });
            });
}

int64_t CudaBackend::dense_rows() const {
    int64_t rows = 0;
    for (const auto& device : impl_->devices) {
        rows += device->e_step.dense_rows();
    }
    return rows;
}

bool CudaBackend::on_tensor_cores() const {
    return impl_->first().mixture.sparse();
}

const CudaTimes& CudaBackend::times() const {
    return impl_->first().context.timer.times();
}

int64_t CudaBackend::peak_device_bytes() const {
    int64_t peak = 0;
    for (const auto& device : impl_->devices) {
        peak = std::max(peak, device->context.memory.peak());
    }
    return peak;
}

} // namespace faiss_flashgmm
