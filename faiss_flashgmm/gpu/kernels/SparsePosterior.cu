#include <faiss_flashgmm/gpu/kernels/SparsePosterior.cuh>

#include <cmath>

#include <faiss_flashgmm/gpu/kernels/SparsePosteriorUnits.cuh>
#include <faiss_flashgmm/gpu/utils/CudaError.h>

namespace faiss_flashgmm::gpu {

namespace {

int device_attribute(cudaDeviceAttr attribute) {
    int device = 0;
    int value = 0;
    FLASHGMM_CUDA(cudaGetDevice(&device));
    FLASHGMM_CUDA(cudaDeviceGetAttribute(&value, attribute, device));
    return value;
}

} // namespace

MatrixUnit best_matrix_unit() {
    const int major = device_attribute(cudaDevAttrComputeCapabilityMajor);
    return major == 9   ? MatrixUnit::wgmma
            : major > 7 ? MatrixUnit::mma
                        : MatrixUnit::none;
}

PassShape SparsePosterior::shape(MatrixUnit unit, int64_t n, int64_t d_padded) {
    PassShape shape = unit == MatrixUnit::mma ? kMmaShape
            : d_padded <= kNarrow             ? kNarrowWgmmaShape
                                              : kWgmmaShape;
    const int64_t at_once = int64_t(shape.blocks) *
            device_attribute(cudaDevAttrMultiProcessorCount);
    shape.blocks = uint32_t(
            std::min(at_once, HalfRows::padded_rows(n) / shape.tile_rows));
    return shape;
}

float SparsePosterior::bits_kept() const {
    const float bits = -std::log2(min_responsibility);
    if (kept.tail != nullptr) {
        return bits;
    }
    // All that is left out of Z is less than z_error of it.
    const int64_t k = components.tiles * HalfComponents::kTile;
    return std::max(bits, std::log2(float(k) / z_error));
}

void SparsePosterior::launch(cudaStream_t stream) const {
    if (unit == MatrixUnit::mma) {
        launch_mma(*this, stream);
    } else if (rows.d_padded <= kNarrow) {
        launch_narrow_wgmma(*this, stream);
    } else {
        launch_wgmma(*this, stream);
    }
}

} // namespace faiss_flashgmm::gpu
