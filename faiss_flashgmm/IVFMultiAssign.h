#pragma once

#include <cstddef>
#include <vector>

#include <faiss_flashgmm/FlashGMMClustering.h>
#include <faiss_flashgmm/MultiAssign.h>
#include <faiss_flashgmm/compat.h>

namespace faiss_flashgmm {

/// How vectors spread over the inverted lists.
struct ListStatistics {
    std::vector<size_t> entries;   ///< per list: what a probe of it scans
    std::vector<size_t> exclusive; ///< of these: ids in no other list
    double imbalance = 0;          ///< nlist sum e^2 / (sum e)^2; 1 is balanced
    double exclusive_imbalance = 0; ///< the same of `exclusive`
};

/// What an index knows of its entries without reading them.
struct EntryCounts {
    size_t vectors = 0;    ///< different ids
    size_t copies = 0;     ///< entries beyond one a vector
    int max_copies = 1;    ///< the most entries of one id
    idx_t largest_id = -1; ///< the largest id ever added, at least -1
};

/** What every IndexIVFMultiAssign has beside its FAISS base class: an index
 * can be cast to it (dynamic_cast) whatever its codec.
 */
struct IVFMultiAssign {
    MultiAssign assigner; ///< where vectors are stored; applies to later adds
    FlashGMMOptions gmm;  ///< how train() fits the mixture

    /// train() leaves the centroids to the k-means of FAISS. A policy that
    /// needs a mixture gets one fitted around them.
    bool kmeans_centroids = false;

    /// Real queries for train() to learn the demand from, size a multiple of d,
    /// as the index itself gets them (below a transform: transformed). Empty:
    /// the training rows stand for them. Kept by no file.
    std::vector<float> sample_queries;

    /// The iterations of the last fit by train(), of all redos, in order.
    std::vector<IterationStats> em_stats;

    /// The mixture whose components are the lists; k = 0: none yet.
    const Mixture& mixture() const {
        return mixture_;
    }

    /** Gives the index a mixture instead of having train() fit one.
     *
     * @param mixture   k = nlist, d as the index, and means equal, bit for
     *                  bit, to the centroids that the quantizer holds
     */
    virtual void set_mixture(const Mixture& mixture) = 0;

    /** The lists that add() would store rows in.
     *
     * @param lists     output, size n * assigner.max_lists(), the primary list
     *                  first; -1: none
     */
    virtual void assign_lists(idx_t n, const float* x, idx_t* lists) const = 0;

    /// Stored entries: ntotal and the second copies.
    virtual size_t nentries() const = 0;

    /// Stored entries a vector, 1 to 2; 1 when empty.
    double entries_per_vector() const;

    /// Takes constant time.
    virtual EntryCounts counts() const = 0;

    /// Reads all ids: O(nentries() log nentries()).
    virtual ListStatistics list_statistics() const = 0;

    /** Takes stock of the inverted lists again, after code that knows nothing
     * of copies has changed them (replace_invlists, faiss::ivflib).
     *
     * Throws faiss::FaissException if an id is stored more than 8 times.
     */
    virtual void recount() = 0;

    virtual ~IVFMultiAssign() = default;

   protected:
    /// Lets the assigner learn what it needs, if anything.
    void learn_assignment(
            const faiss::Index& quantizer,
            const Mixture& mixture,
            idx_t n,
            const float* x);

    /// assign_lists() of rows whose primary lists are given, size n.
    void complete_lists(
            const faiss::Index& quantizer,
            idx_t n,
            const float* x,
            const idx_t* primary,
            bool bulk,
            idx_t* lists) const;

    Mixture mixture_;
    size_t n_copies_ = 0; ///< entries beyond one a vector
    int max_copies_ = 1;  ///< the most entries of one id
    idx_t max_id_ = -1;   ///< the largest id ever added
};

} // namespace faiss_flashgmm
