#pragma once

#include <faiss/Index.h>

#include <faiss_flashgmm/compat.h>
#include <faiss_flashgmm/em/Mixture.h>

namespace faiss_flashgmm {

/// Which second list a vector is stored in, if any.
enum class AssignPolicy {
    single,    ///< none
    posterior, ///< that of the most responsible other component
    nearest,   ///< that of the nearest other centroid
};

/** Chooses the inverted lists of a vector beyond its primary one.
 *
 * The primary list is the one the coarse quantizer assigns the vector to, for
 * every policy: a search with nprobe = 1 looks there. Components of the
 * mixture and lists share their numbers.
 *
 * All fields may change at any time; rows added later follow them.
 */
struct MultiAssign {
    AssignPolicy policy = AssignPolicy::posterior;

    /// posterior: a second list is stored if the responsibility of its
    /// component, among all components, exceeds tau. < 0: 1 / nlist.
    double tau = -1;

    /// nearest: a second list is stored if |x - c2| <= distance_ratio *
    /// |x - c1|, Euclidean distances (not squared) for every metric, with c1
    /// and c2 the centroids of the primary and the second list. 0: always.
    double distance_ratio = 0;

    /// The most lists a vector can be in.
    int max_lists() const {
        return policy == AssignPolicy::single ? 1 : 2;
    }

    bool needs_mixture() const {
        return policy == AssignPolicy::posterior;
    }

    /// Throws faiss::FaissException naming the first field out of range.
    void check() const;

    /** The lists of rows beyond their primary one.
     *
     * @param quantizer     trained, one entry a list
     * @param mixture       one component a list; read only by policies that
     *                      need it
     * @param x             rows, size n * quantizer.d
     * @param primary       primary list of each row, size n; a row with -1
     *                      gets no other list
     * @param extra         output, size n * (max_lists() - 1), best first; -1:
     *                      none. Never the primary list.
     * @param scores        output of the same size, or null: comparable
     *                      between rows, higher is better, -infinity where
     *                      extra is -1. posterior: log responsibility;
     *                      nearest: log(|x - c1| / |x - c2|).
     */
    void extra_lists(
            const faiss::Index& quantizer,
            const Mixture& mixture,
            idx_t n,
            const float* x,
            const idx_t* primary,
            idx_t* extra,
            float* scores = nullptr) const;
};

} // namespace faiss_flashgmm
