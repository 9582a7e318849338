#include <faiss_flashgmm/gpu/DeviceMoments.h>

#include <cstddef>
#include <span>

namespace faiss_flashgmm::gpu {

int64_t DeviceMoments::bytes(int64_t d) {
    return 8 * (d + (SumMoments::kBlocks + 1) * SumMoments::sums_size(d) + 1);
}

std::string DeviceMoments::add(
        int64_t first,
        const ResidentRows& r,
        RowMoments& moments) {
    const int64_t d = r.rows.d;
    const int64_t size = SumMoments::sums_size(d);
    pivot_.reserve(d, "the pivot of the moments");
    parts_.reserve(SumMoments::kBlocks * size, "the moments");
    sums_.reserve(size, "the moments");
    first_bad_.reserve(1, "the moments");
    host_sums_.reserve(size, "the moments");
    host_first_bad_.reserve(1, "the moments");

    const cudaStream_t stream = context_.compute;
    FLASHGMM_CUDA(cudaMemcpyAsync(
            pivot_.get(),
            moments.pivot().data(),
            d * sizeof(double),
            cudaMemcpyHostToDevice,
            stream));
    SumMoments sum;
    sum.rows = r.rows;
    sum.pivot = pivot_.get();
    sum.parts = parts_.get();
    sum.sums = sums_.get();
    sum.first_bad = first_bad_.get();
    sum.launch(stream);
    FLASHGMM_CUDA(cudaMemcpyAsync(
            host_sums_.get(),
            sums_.get(),
            size * sizeof(double),
            cudaMemcpyDeviceToHost,
            stream));
    FLASHGMM_CUDA(cudaMemcpyAsync(
            host_first_bad_.get(),
            first_bad_.get(),
            sizeof(uint64_t),
            cudaMemcpyDeviceToHost,
            stream));
    context_.compute.synchronize();

    const std::span<double> flat = moments.flat();
    const double* sums = host_sums_.get();
    for (int64_t i = 0; i < 2 * d; ++i) {
        flat[i] += sums[i];
    }
    flat[2 * d] += double(r.rows.n);
    flat[2 * d + 1] += sums[2 * d];
    flat[2 * d + 2] += sums[2 * d + 1];
    const uint64_t first_bad = *host_first_bad_.get();
    return first_bad == SumMoments::kNone ? ""
                                          : describe(first, r.rows, first_bad);
}

std::string DeviceMoments::describe(
        int64_t first,
        const SourceRows& rows,
        uint64_t first_bad) const {
    const int64_t row = int64_t(first_bad) / (rows.d + 1);
    const int64_t column = int64_t(first_bad) % (rows.d + 1) - 1;
    const RowView from = column < 0
            ? RowView(rows.weights + row)
            : RowView(rows.x, rows.type).from(row * rows.d + column);
    std::byte raw[4];
    FLASHGMM_CUDA(cudaMemcpy(
            raw, from.data, size_of(from.type), cudaMemcpyDeviceToHost));
    float value = 0;
    to_floats({raw, from.type}, 1, &value);
    return column < 0 ? RowMoments::bad_weight(first + row, value)
                      : RowMoments::bad_value(first + row, column, value);
}

} // namespace faiss_flashgmm::gpu
