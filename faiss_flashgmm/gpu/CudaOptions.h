#pragma once

#include <cstdint>
#include <vector>

namespace faiss_flashgmm {

/// Where the responsibilities come from.
enum class CudaPrecision {
    /// Tensor cores: rows and means rounded to fp16, fp32 sums.
    fp16,
    /// Tensor cores choose the components that matter to a row; fp32
    /// differences of the rows as they came decide.
    fp32,
    /// fp32 differences for every pair. Slow; runs on any device.
    reference,
};

/// Which instructions multiply where the tensor cores are used.
enum class CudaMatrixUnit {
    automatic, ///< the fastest that the device has
    mma,       ///< those of sm_80 and later; slower on sm_90
};

struct CudaOptions {
    /// Devices that share the rows. Statistics are summed in the order of
    /// the list.
    std::vector<int> devices = {0};

    CudaPrecision precision = CudaPrecision::fp16;

    CudaMatrixUnit matrix_unit = CudaMatrixUnit::automatic;

    /// Components whose responsibility is under this share of the row's
    /// largest stay out of the M-step's sums. The statistics report their mass.
    double min_responsibility = 1.0 / (1 << 16);

    /// Bit for bit the same statistics in every run, at the price of a sort.
    bool deterministic = false;

    /// Rows that one launch works on. Lowered when memory is short.
    int64_t max_launch_rows = 1 << 20;

    /// Bytes of device memory to use at most, on each device; 0: what is free.
    /// If rows do not fit beside what a launch needs they are copied in every
    /// iteration; if that does not fit, launches get smaller.
    int64_t memory_limit = 0;

    /// Record CudaBackend::times(). Costs little.
    bool profile = false;
};

/// Milliseconds on the first device in the last iteration, by kernel.
struct CudaTimes {
    double copy_rows = 0; ///< waiting for rows from host memory
    double condition = 0; ///< rows to fp16
    double seed = 0;      ///< bounds of the rows' largest logits
    double posterior = 0; ///< pass 1
    double emit = 0;      ///< log Z and pairs from what pass 1 kept
    double refine = 0;    ///< fp32 responsibilities
    double sort = 0;      ///< pairs by component
    double sum = 0;       ///< pass 2
    double dense = 0;     ///< rows that the sparse way leaves out
    double maximize = 0;  ///< the M-step, if it runs on the device
};

} // namespace faiss_flashgmm
