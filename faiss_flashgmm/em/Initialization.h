#pragma once

#include <cstdint>
#include <functional>

#include <faiss_flashgmm/em/RowSource.h>

namespace faiss_flashgmm {

/// Of the random numbers of draw_kmeans_pp(): one a mean, in order.
constexpr uint64_t kSeedingStream = 3;

/** Draws different rows as means, by weight (rows of weight 0 never).
 *
 * Equal rows are drawn twice only when nothing else is left to draw.
 *
 * @param first     means [0, first) are given and stay; the others are drawn
 * @param means     in and out, size k * rows.dim(), user's units
 */
void draw_random_rows(
        RowSource& rows,
        int64_t first,
        int64_t k,
        uint64_t seed,
        float* means);

/** k-means++ seeding (Arthur and Vassilvitskii, SODA 2007): each mean is a row
 * drawn with probability proportional to its weight times its squared distance
 * to the means so far. Reads all rows into memory and takes O(size * k * d):
 * meant for a sample. Parameters as above.
 *
 * @param on_mean   called with the number of means so far; may throw
 */
void draw_kmeans_pp(
        RowSource& rows,
        int64_t first,
        int64_t k,
        uint64_t seed,
        float* means,
        const std::function<void(int64_t)>& on_mean = {});

} // namespace faiss_flashgmm
