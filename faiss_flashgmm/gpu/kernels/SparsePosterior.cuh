#pragma once

#include <algorithm>

#include <cuda_runtime_api.h>

#include <faiss_flashgmm/gpu/kernels/Params.h>

namespace faiss_flashgmm::gpu {

/// Eight logits of a row.
struct LogitGroup {
    float4 logits[2];
    uint32_t first;
    uint32_t unused[3];

#ifdef __CUDACC__
    __device__ float logit(int i) const {
        return reinterpret_cast<const float*>(logits)[i];
    }
    static __device__ uint32_t component(uint32_t first, int i) {
        return first + 8 * (i / 2) + i % 2;
    }
#endif
};

/// How the kernel of pass 1 that is used shares out the work.
struct PassShape {
    uint32_t blocks;    ///< each takes every blocks-th tile of rows
    uint32_t tile_rows; ///< which divides HalfRows::kPadding
    /// Of a block, for each thread and row of a tile one: where it keeps
    /// groups.
    uint32_t streams;
    /// Components are shared out between so many threads of a row, times four.
    uint32_t parts;

    static constexpr uint32_t kMostParts = 2;
};

/// The logits of each row that may matter: those of groups that have one close
/// to the row's largest.
struct KeptLogits {
    /// Of a list: where it starts in the block's region, and its length.
    static constexpr int kLengthBits = 10;
    /// Length of a list that the stream had no room for; more than any row may
    /// have.
    static constexpr uint32_t kOverflow = (1 << kLengthBits) - 1;

    PassShape shape = {};
    /// A region for each block, with its streams.
    LogitGroup* groups = nullptr;
    uint32_t groups_of_stream = 0;

    uint32_t* lists = nullptr; ///< 4 * shape.parts for each row
    float* largest = nullptr;  ///< of the logits of each part, of each row
    /// Sum of 2^(logit - largest) over the logits of each part of each row
    /// that were not kept, or null.
    float* tail = nullptr;

    /// @param size     groups that there is room for
    static uint32_t stream_size(int64_t size, const PassShape& shape) {
        const int64_t most =
                (int64_t(1) << (32 - kLengthBits)) / shape.streams - 1;
        return uint32_t(
                std::min(size / (int64_t(shape.blocks) * shape.streams), most));
    }

#ifdef __CUDACC__
    __device__ uint32_t region_of_block(uint32_t block) const {
        return block * shape.streams * groups_of_stream;
    }
    /// Of the block that has the row.
    __device__ const LogitGroup* region_of_row(uint32_t row) const {
        return groups + region_of_block(row / shape.tile_rows % shape.blocks);
    }
#endif
};

enum class MatrixUnit {
    none,
    mma,   ///< of sm_80 and later
    wgmma, ///< of sm_90
};

/// The best one of the current device.
MatrixUnit best_matrix_unit();

/** Pass 1 on the tensor cores: all logits, of which those that may matter are
 * kept.
 */
struct SparsePosterior {
    HalfRows rows;
    HalfComponents components;
    /// Lower bounds of each row's largest logit, or null. The better they are
    /// the fewer logits are kept that turn out not to matter. Not for the m
    /// largest.
    const float* seeds = nullptr;

    /// Keep what is at least this share of the largest,
    float min_responsibility = 0;
    /// and, unless kept.tail is asked for, all that may sum to more than this
    /// share of Z,
    float z_error = 1.0f / (1 << 11);
    /// and the m largest with all that are within so many bits of them.
    int m = 1; ///< at most kMostTop
    float slack = 0;

    MatrixUnit unit = MatrixUnit::wgmma;

    /// Of whole tiles, see HalfRows::padded_rows().
    KeptLogits kept;

    static constexpr int kMostTop = 8;

    /// Of a launch on the current device.
    static PassShape shape(MatrixUnit unit, int64_t n, int64_t d_padded);

    void launch(cudaStream_t stream) const;

    /// How many bits below the row's largest a logit must be to be left out.
    float bits_kept() const;
};

} // namespace faiss_flashgmm::gpu
