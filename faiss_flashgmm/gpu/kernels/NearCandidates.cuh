#pragma once

#include <cmath>

#include <cuda_runtime_api.h>

#include <faiss_flashgmm/gpu/kernels/Params.h>

// The search for near rows by fp16 products, which only select: whatever may be
// near by the bounds below goes on to exact distances.

namespace faiss_flashgmm::gpu {

/// An order of rows that mixes them: place p has row p * step mod n.
struct MixedOrder {
    uint32_t n = 0;
    uint32_t step = 1; ///< has no divisor in common with n

    __host__ __device__ uint32_t row(uint32_t place) const {
        return uint32_t(uint64_t(place) * step % n);
    }
};

/// Rows in fp16, and how far each has moved by that.
struct RoundedRows {
    HalfRows half;
    float* errors = nullptr; ///< padded as half.squared; never too small
};

/// Of all rows together.
struct RowExtent {
    float squared; ///< the largest |x|^2
    float error;   ///< the largest error
};

/// Conditions and rounds rows; numbers that fp16 does not hold become its
/// largest, at the price of their row's error.
struct RoundRows {
    SourceRows rows;
    MixedOrder order; ///< of the output; n = 0: as they come
    RoundedRows out;
    RowExtent* extent = nullptr; ///< output; cleared before

    void launch(cudaStream_t stream) const;
};

/** What is added to bounds, in conditioned units, so that no rounding leaves
 * out a near row.
 *
 * With e and E what two rows have moved by rounding, their distance is at least
 * that of the rounded ones less e + E, and their product differs by at most
 * e Y + X E + e E. Products in fp32 are off by (d / 16 + 8) 2^-22 of the norms:
 * the matrix unit truncates its sums. That is taken four times.
 */
struct NearBounds {
    float inverse_scale = 1;
    float relative = 0; ///< error of products and norms
    bool inner_product = false;

    static NearBounds of(const SourceRows& rows, bool inner_product) {
        return {rows.inverse_scale,
                (float(rows.d) / 16 + 32) * 0x1p-20f,
                inner_product};
    }

#ifdef __CUDACC__
    /** A pair may be within a distance only if x.y - |y|^2 / 2 (without that
     * for inner products) of the rounded rows is at least so much.
     *
     * @param distance  as it comes: squared, or the product's negative
     */
    __device__ float least_product(
            float distance,
            float x_squared,
            float error,
            const RowExtent& y) const {
        if (distance == -INFINITY) {
            return INFINITY;
        }
        float least;
        if (inner_product) {
            const float product = -distance * inverse_scale * inverse_scale;
            least = product - fabsf(product) * relative -
                    moved(x_squared, error, y.squared, y.error);
        } else {
            const float norms = x_squared + y.squared;
            least = (x_squared - farthest(distance, error + y.error, norms)) /
                    2;
        }
        return least > -INFINITY ? least : -INFINITY; // also what is no number
    }
    /** The same seen from y: x.y - |x|^2 / 2 (without that for inner products)
     * is at least so much.
     */
    __device__ float least_product_of(
            float distance,
            float y_squared,
            float error,
            const RowExtent& x) const {
        return !inner_product && distance < 0
                ? INFINITY
                : least_product(distance, y_squared, error, x);
    }

   private:
    __device__ float moved(float xx, float e, float yy, float f) const {
        return e * sqrtf(yy) + f * sqrtf(xx) + e * f + relative * (xx + yy);
    }
    /// Squared distance that the rounded rows may have.
    __device__ float farthest(float distance, float moved, float norms) const {
        const float root =
                sqrtf(distance) * inverse_scale * (1 + 0x1p-20f) + moved;
        const float squared = root * root;
        return squared + relative * (squared + norms);
    }
#endif
};

/// What the product of a place with any row is added to.
struct StartProducts {
    RoundedRows base; ///< in the order of the places
    NearBounds bounds;
    MixedOrder order;
    /// Size order.n, or null: pairs are judged by the bound of the row alone.
    const float* radii = nullptr;
    const RowExtent* rows = nullptr; ///< with radii
    float* starts = nullptr;         ///< output, padded as base

    /// Of padding: never near.
    static constexpr float kNever = -3e38f;

    void launch(cudaStream_t stream) const;
};

/// Bounds of rows whose places have radii.
void start_rows(
        const RoundedRows& rows,
        const NearBounds& bounds,
        float* least,
        cudaStream_t stream);

/** Lists, for each row, the places [begin, begin + count) of the base whose
 * start plus product is not below the row's bound.
 */
struct NearCandidates {
    static constexpr int64_t kTile = 128; ///< begin is a multiple

    RoundedRows rows;
    const float* least = nullptr; ///< bounds, padded as rows
    RoundedRows base;
    const float* starts = nullptr;
    int64_t begin = 0;
    int64_t count = 0;

    uint32_t capacity = 0;        ///< places of a row
    uint32_t* counts = nullptr;   ///< size rows.half.n; cleared before
    uint32_t* places = nullptr;   ///< size rows.half.n * capacity
    uint32_t* overflow = nullptr; ///< the largest count that is too large

    void launch(cudaStream_t stream) const;
};

} // namespace faiss_flashgmm::gpu
