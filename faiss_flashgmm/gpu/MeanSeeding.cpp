#include <faiss_flashgmm/gpu/MeanSeeding.h>

#include <numeric>
#include <vector>

#include <faiss_flashgmm/em/Initialization.h>
#include <faiss_flashgmm/gpu/kernels/SeedMeans.cuh>
#include <faiss_flashgmm/gpu/utils/Buffer.h>
#include <faiss_flashgmm/utils/Philox.h>

namespace faiss_flashgmm::gpu {

void seed_means(
        DeviceContext& context,
        RowSource& rows,
        int64_t first,
        int64_t k,
        uint64_t seed,
        float* means,
        const std::function<void(int64_t)>& on_mean) {
    const int64_t n = rows.size();
    const int64_t d = rows.dim();
    std::vector<int64_t> indices(n);
    std::iota(indices.begin(), indices.end(), 0);
    std::vector<float> x(n * d);
    std::vector<float> weights(rows.weighted() ? n : 0);
    rows.gather(indices, x.data(), weights.empty() ? nullptr : weights.data());
    std::vector<double> uniform(k);
    Philox random(seed, kSeedingStream);
    for (int64_t c = first; c < k; ++c) {
        uniform[c] = random.uniform();
    }

    const Stream& stream = context.compute;
    DeviceMemory& memory = context.memory;
    const auto upload = [&](auto& buffer, const auto& v, size_t size) {
        buffer.reserve(size, "the seeding of the means");
        FLASHGMM_CUDA(cudaMemcpyAsync(
                buffer.get(),
                v.data(),
                v.size() * sizeof(v[0]),
                cudaMemcpyHostToDevice,
                stream));
    };
    DeviceBuffer<float> device_x(memory), device_weights(memory);
    DeviceBuffer<float> device_means(memory);
    DeviceBuffer<double> device_uniform(memory), nearest(memory), mass(memory);
    SeedMeans p;
    upload(device_x, x, x.size());
    upload(device_uniform, uniform, k);
    p.rows.n = n;
    p.rows.d = d;
    p.rows.x = device_x.get();
    if (!weights.empty()) {
        upload(device_weights, weights, n);
        p.rows.weights = device_weights.get();
    }
    upload(device_means, std::vector<float>(means, means + first * d), k * d);
    nearest.reserve(n, "the seeding of the means");
    mass.reserve(2 * p.stretches(), "the seeding of the means");
    p.nearest = nearest.get();
    p.mass = mass.get();
    p.weight = mass.get() + p.stretches();
    p.means = device_means.get();
    p.uniform = device_uniform.get();

    constexpr int64_t kReported = 64; // waiting has a price
    p.add(-1, stream);
    for (int64_t c = 0; c < k; ++c) {
        if (c >= first) {
            p.draw(c, stream);
        }
        p.add(c, stream);
        if (on_mean && ((c + 1) % kReported == 0 || c + 1 == k)) {
            stream.synchronize();
            on_mean(c + 1);
        }
    }
    FLASHGMM_CUDA(cudaMemcpyAsync(
            means,
            device_means.get(),
            k * d * sizeof(float),
            cudaMemcpyDeviceToHost,
            stream));
    stream.synchronize();
}

} // namespace faiss_flashgmm::gpu
