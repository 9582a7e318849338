#pragma once

#include <cstddef>
#include <cstdint>

namespace faiss_flashgmm {

/** The inner loops of the CPU backend, and of searches of 4-bit codes, each
 * compiled for several instruction sets and dispatched at run time. Logits are
 * in the log2 domain.
 */
namespace row_kernels {

/** Upper bounds of a row's logits from its inner products.
 *
 *     u[i] = slope[i] * (u[i] - half_norm) + intercept[i]
 *
 * @param u     in: inner products of the row with n means; out: the bounds
 * @return      the largest bound
 */
float upper_bounds(
        size_t n,
        const float* slope,
        const float* intercept,
        float half_norm,
        float* u);

/// The largest u[i]; n >= 1.
float largest(size_t n, const float* u);

/// The first i with u[i] == value; n if there is none.
size_t index_of(size_t n, const float* u, float value);

/** Indices i with u[i] > threshold, increasing.
 *
 * @param missed    out: sum of 2^(u[i] - best) over the others down to
 *                  kMissedBits below the threshold, or up to 6.2% more
 * @param indices   output, room for n
 * @return          how many
 */
size_t select_above(
        size_t n,
        const float* u,
        float threshold,
        float best,
        float* missed,
        uint32_t* indices);

/// Bits below the selection threshold that `missed` still counts.
constexpr float kMissedBits = 16;

/// |x - means[indices[i]]|^2 for each i, by direct differences in fp32.
void squared_distances(
        size_t d,
        const float* x,
        const float* means,
        size_t n,
        const uint32_t* indices,
        float* distances);

/** r[i] = 2^logits[i], for logits at most 0.
 * @return  their sum
 */
double exp2_below(size_t n, const float* logits, float* r);

/** sums += sum_i weights[i] * rows[i], in fp64, in the order of i.
 *
 * @param x         base of the rows, row-major, dimension d
 * @param rows      row numbers, size n
 * @param weights   size n
 * @param sums      in and out, size d
 */
void add_weighted_rows(
        size_t d,
        const float* x,
        size_t n,
        const uint32_t* rows,
        const double* weights,
        double* sums);

/// Sum of squares, in fp64.
double squared_norm(size_t d, const float* x);

/// out = (x - shift) * inverse, in fp64, rounded once.
void condition(
        size_t d,
        const float* x,
        const float* shift,
        double inverse,
        float* out);

/// Values that next_below() tells of at once.
constexpr size_t kBelowBlock = 32;

/** The first block of values with one below a threshold, in 16-bit arithmetic:
 *
 *     ((values[i] + offset) ^ flip) < threshold
 *
 * @param n         a multiple of kBelowBlock
 * @param from      where to begin, a multiple of kBelowBlock
 * @param below     out: bit j is that of value (returned + j)
 * @return          where the block starts; n if there is none
 */
size_t next_below(
        size_t n,
        const uint16_t* values,
        uint16_t offset,
        uint16_t flip,
        uint16_t threshold,
        size_t from,
        uint32_t* below);

} // namespace row_kernels
} // namespace faiss_flashgmm
