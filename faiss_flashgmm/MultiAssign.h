#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include <faiss/Index.h>

#include <faiss_flashgmm/Demand.h>
#include <faiss_flashgmm/compat.h>
#include <faiss_flashgmm/em/Mixture.h>

namespace faiss_flashgmm {

/// Which lists a vector is stored in beyond its primary one. docs/assignment.md
/// compares them.
enum class AssignPolicy {
    single,    ///< none
    posterior, ///< those of the most responsible other components
    nearest,   ///< those of the nearest other centroids
    air,       ///< residuals that point away from the primary one (RAIRS)
    soar,      ///< residuals at right angles to the primary one (ScaNN)
    demand,    ///< where the queries that want the vector look first
};

/// What a MultiAssign has learned from training rows.
struct LearnedAssignment {
    std::string settings; ///< MultiAssign::settings() of then
    double threshold = -std::numeric_limits<double>::infinity(); ///< of scores
    Demand demand; ///< empty but for the policy `demand`
};

/** Chooses the inverted lists of a vector beyond its primary one.
 *
 * The primary list is the one the coarse quantizer assigns the vector to, for
 * every policy: a search with nprobe = 1 looks there. Components of the
 * mixture and lists share their numbers.
 *
 * All fields may change at any time; rows added later follow them. What
 * learn() found is kept for the settings it was found for.
 */
struct MultiAssign {
    AssignPolicy policy = AssignPolicy::posterior;

    /// The most lists a vector is stored in, 1 to 8.
    int max_entries = 2;

    /** The most stored entries a vector, on average: of all copies that the
     * policy proposes, those of best score are stored. 0: all of them.
     *
     * The limit is exact for a bulk load, and kept by a threshold learned from
     * the training rows otherwise.
     */
    double max_inflation = 0;

    /// posterior: a list is stored if the responsibility of its component,
    /// among all components, exceeds tau. < 0: 1 / nlist.
    double tau = -1;

    /// nearest: a list is stored if |x - c'| <= distance_ratio * |x - c1|,
    /// Euclidean distances (not squared) for every metric, with c1 and c' the
    /// centroids of the primary and the other list. 0: always.
    double distance_ratio = 0;

    /// nearest: leaves out a list if the centroid of one that is kept is
    /// nearer to its centroid than the vector is (SPANN, arXiv 2111.08566).
    bool rng_rule = false;

    /// air: with r and r' the residuals to the primary and another centroid,
    /// stores the lists of least |r'|^2 + air_lambda r.r' (RAIRS, arXiv
    /// 2601.07183); with more than two lists, the products with all of them.
    double air_lambda = 0.5;
    /// air: only where that is less than (1 + air_lambda) |r|^2, the loss of
    /// the primary list itself.
    bool air_relaxed = false;

    /// soar: stores the lists of least |r'|^2 + soar_lambda (r.r')^2 / |r|^2
    /// (SOAR, arXiv 2404.00774); with more than two lists, summed over all.
    double soar_lambda = 1;

    /// air, soar and rng_rule choose among so many lists, in probing order.
    int candidates = 16;

    /// demand: how it learns and judges.
    DemandParameters demand_parameters;

    LearnedAssignment learned; ///< by learn()

    /// The most lists a vector can be in.
    int max_lists() const {
        return policy == AssignPolicy::single ? 1 : max_entries;
    }

    bool needs_mixture() const {
        return policy == AssignPolicy::posterior;
    }

    /// Whether learn() has to run before lists are chosen, for a bulk load and
    /// otherwise.
    bool needs_learning(bool bulk) const {
        return policy == AssignPolicy::demand ||
                (!bulk && max_inflation > 0 && max_lists() > 1);
    }

    /// Throws faiss::FaissException naming the first field out of range.
    void check() const;

    /// The same; also throws if lists cannot be chosen with what was learned.
    void check_learned(const faiss::Index& quantizer, bool bulk) const;

    /// The settings that what is learned depends on, as text.
    std::string settings() const;

    /** Learns from training rows what the policy and max_inflation need.
     *
     * demand finds the neighbors of all surrogates: about surrogates * n *
     * reach / nlist distances, by matrix products.
     *
     * @param queries   more surrogates for demand, size n_queries * d: a
     *                  sample of real queries. null: the training rows alone
     */
    void learn(
            const faiss::Index& quantizer,
            const Mixture& mixture,
            idx_t n,
            const float* x,
            idx_t n_queries = 0,
            const float* queries = nullptr);

    /** The lists of rows beyond their primary one, within max_inflation.
     *
     * @param bulk  the limit is exact among these rows; else the threshold is
     *              used. Rows that score the same are taken in their order.
     */
    void choose(
            const faiss::Index& quantizer,
            const Mixture& mixture,
            idx_t n,
            const float* x,
            const idx_t* primary,
            bool bulk,
            idx_t* extra) const;

    /** The lists of rows beyond their primary one, without max_inflation.
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
     *                      nearest: log(|x - c1| / |x - c'|); air and soar:
     *                      the loss over -|r|^2; demand: see DemandParameters.
     *                      Never above that of the entry before.
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

/** Takes out all but the copies of best score, to max_inflation stored entries
 * a vector. Copies that score the same stay in the order of the rows.
 *
 * @param primary   size n; rows with -1 do not count
 * @param scores    size n * width, as extra_lists() gives them
 * @param extra     size n * width, replaced by -1
 */
void keep_best(
        double max_inflation,
        idx_t n,
        const idx_t* primary,
        int width,
        const float* scores,
        idx_t* extra);

} // namespace faiss_flashgmm
