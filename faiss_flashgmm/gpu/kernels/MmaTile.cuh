#pragma once

#include <cstdint>

#include <cuda_fp16.h>

#include <faiss_flashgmm/gpu/kernels/Params.h>
#include <faiss_flashgmm/gpu/ptx/Sm80.cuh>

namespace faiss_flashgmm::gpu {

/** A block of columns of two tiles of fp16 rows in shared memory, and their
 * products by mma.sync: 128 rows with 128 others, by eight warps of 32 x 64.
 */
struct MmaTile {
    static constexpr int kWarpRows = 32;
    static constexpr int kWarpOthers = 64;
    static constexpr int kRowParts = 4;
    static constexpr int kOtherParts = 2;
    static constexpr int kThreads = kRowParts * kOtherParts * 32;
    static constexpr int kRows = kRowParts * kWarpRows;
    static constexpr int kOthers = kOtherParts * kWarpOthers;
    static constexpr int kFragments = kWarpRows / 16; // of 16 rows
    static constexpr int kThreadRows = 2 * kFragments;

    static constexpr int kBlockBytes = HalfLayout::kBlock * sizeof(__half);
    static constexpr int kChunkBytes = HalfLayout::kChunk * sizeof(__half);
    /// Bytes of a block of a group of rows, see HalfLayout.
    static constexpr int kAtom = HalfLayout::kGroup * kBlockBytes;
    static constexpr int kRowsBytes = kRows * kBlockBytes;
    static constexpr int kOthersBytes = kOthers * kBlockBytes;

    char rows[kRowsBytes];
    char others[kOthersBytes];

    /** The products of a thread: fragment f has, in c[f][4 g + 2 h + i], row
     * 16 f + lane / 4 + 8 h and other 8 g + 2 (lane % 4) + i of its warp.
     */
    using Products = float[kFragments][kWarpOthers / 2];

    /// Starts to copy a block of columns of a tile of 128 rows.
    static __device__ __forceinline__ void load(
            const HalfRows& from,
            int64_t tile,
            int block,
            char* to) {
        const char* rows = reinterpret_cast<const char*>(
                from.x + tile * kRows * from.d_padded);
        rows += block * kAtom;
#pragma unroll
        for (int i = 0; i < kRowsBytes / kChunkBytes / kThreads; ++i) {
            const int byte = (i * kThreads + threadIdx.x) * kChunkBytes;
            ptx::async_copy(
                    to + byte,
                    rows +
                            byte / kAtom *
                                    (HalfLayout::kGroup * 2 * from.d_padded) +
                            byte % kAtom);
        }
    }

    /// Where chunk c of a row lies.
    static __device__ __forceinline__ uint32_t chunk_at(int row, int c) {
        return uint32_t(
                row * kBlockBytes + ((c ^ (row / 2 % 4)) * kChunkBytes));
    }

    /// Adds the products of the block of columns.
    __device__ __forceinline__ void multiply(
            Products& c,
            int row_part,
            int other_part) const {
        const int lane = threadIdx.x % 32;
        const uint32_t row_address =
                ptx::shared_address(rows) + row_part * kWarpRows * kBlockBytes;
        const uint32_t other_address = ptx::shared_address(others) +
                other_part * kWarpOthers * kBlockBytes;
#pragma unroll
        for (int step = 0; step < HalfLayout::kBlock / 16; ++step) {
            uint32_t a[kFragments][4];
#pragma unroll
            for (int f = 0; f < kFragments; ++f) {
                ptx::load_matrices(
                        a[f],
                        row_address +
                                chunk_at(
                                        16 * f + lane % 16,
                                        2 * step + lane / 16));
            }
#pragma unroll
            for (int j = 0; j < kWarpOthers / 16; ++j) {
                uint32_t b[4]; // of two times 8 others
                ptx::load_matrices(
                        b,
                        other_address +
                                chunk_at(
                                        16 * j + lane / 16 * 8 + lane % 8,
                                        2 * step + lane / 8 % 2));
#pragma unroll
                for (int f = 0; f < kFragments; ++f) {
                    ptx::mma_16x8x16(c[f] + 8 * j, a[f], b[0], b[1]);
                    ptx::mma_16x8x16(c[f] + 8 * j + 4, a[f], b[2], b[3]);
                }
            }
        }
    }
};

} // namespace faiss_flashgmm::gpu
