#pragma once

// Options and rows that the GPU benchmarks share.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <faiss_flashgmm/em/Rows.h>
#include <faiss_flashgmm/gpu/CudaBackend.h>

namespace faiss_flashgmm {

struct GpuBenchOptions {
    int64_t n = 1'000'000;
    int64_t d = 128;
    int64_t k = 1024;
    int runs = 15;
    int warm_up = 8;
    std::string precision = "fp16";
    std::string unit = "automatic"; ///< automatic | mma
    std::string data;          ///< .u8bin or .f16bin; empty: clustered rows
    std::string json;          ///< append results to this file
    std::string rows = "kept"; ///< kept | device | pageable | pinned
    double min_responsibility = CudaOptions().min_responsibility;
    int check_rows = 2000;
    bool deterministic = false;
    std::string type = "float32"; ///< of the rows
    int devices = 1;

    // bench_gpu_fit
    int fit = 25;                     ///< iterations
    std::string init = "random_rows"; ///< random_rows | kmeans_pp | lloyd
    int64_t stream = 0; ///< rows streamed from a generator instead
};

GpuBenchOptions parse(int argc, char** argv);

CudaOptions cuda_options(const GpuBenchOptions& o);
RowType row_type(const GpuBenchOptions& o);

/// Rows around k / 4 centres of their own, so that components share rows; or
/// those of o.data, over and over, repeats with noise of 1% of the spread.
/// Sets o.d to that of the file.
std::vector<float> make_rows(GpuBenchOptions& o);

/// Rows as another type. Integers get the rows scaled and shifted to their
/// range, and x what these integers stand for.
std::vector<std::byte> encode(std::vector<float>& x, RowType type);

/// Appends a line to o.json.
void write_line(const GpuBenchOptions& o, const std::string& line);

} // namespace faiss_flashgmm
