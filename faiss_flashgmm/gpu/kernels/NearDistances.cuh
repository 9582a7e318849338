#pragma once

#include <cuda_runtime_api.h>

#include <faiss_flashgmm/gpu/kernels/NearCandidates.cuh>

namespace faiss_flashgmm::gpu {

/// Places of the base for each row: those that are listed, or a range for all.
struct CandidatePlaces {
    const uint32_t* counts = nullptr; ///< of each row; null: a range
    const uint32_t* places = nullptr;
    uint32_t capacity = 0; ///< of a row; in a range as many at most
    uint32_t begin = 0;
    uint32_t count = 0;
};

/// What distances are measured between: rows as they came, by fp32
/// differences or products.
struct NearPairs {
    SourceRows rows;
    SourceRows base;
    MixedOrder order;
    bool inner_product = false;
    CandidatePlaces candidates;
};

/** Takes candidates into account: keeps the k nearest base rows of each row,
 * the lower number among equals.
 */
struct SelectNearest {
    NearPairs pairs;
    int64_t k = 0;
    const int64_t* self = nullptr; ///< see NearestRows::nearest
    /// Size rows.n * k, best first: see rank_logit() of kernels/Reduce.cuh,
    /// with the distance's negative; 0: none.
    uint64_t* best = nullptr;

    float* least = nullptr; ///< output, or null: NearCandidates::least; by
    NearBounds bounds;
    RoundedRows rounded; ///< the rows
    RowExtent base_extent;

    /// Candidates of a row that there is room for beside the k best.
    static constexpr int64_t capacity(int64_t k) {
        return (k <= 512 ? 2048 : 4096) - k;
    }
    void launch(cudaStream_t stream) const;
};

/// The results of SelectNearest as they are wanted.
struct UnpackNearest {
    int64_t size = 0; ///< n * k
    const uint64_t* best = nullptr;
    float* distances = nullptr; ///< infinity: none
    int64_t* ids = nullptr;     ///< -1: none

    void launch(cudaStream_t stream) const;
};

/// A base row near another.
struct alignas(8) NearRow {
    uint32_t base;
    float distance;
};

/// Of the candidates of each row, those that are no farther than their own
/// radius.
struct MeasureNear {
    NearPairs pairs;
    const float* radii = nullptr; ///< of the base rows

    uint32_t capacity = 0; ///< of near, together
    NearRow* near = nullptr;
    uint32_t* begins = nullptr; ///< size rows.n: where those of a row start
    uint32_t* counts = nullptr; ///< size rows.n
    uint32_t* total = nullptr; ///< cleared before; more than capacity: too many

    static constexpr int64_t kCandidates = 2048; ///< of a row, at most
    void launch(cudaStream_t stream) const;
};

} // namespace faiss_flashgmm::gpu
