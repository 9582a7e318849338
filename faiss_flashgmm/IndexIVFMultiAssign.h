#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <faiss/IndexIVF.h>
#include <faiss/IndexIVFFlat.h>
#include <faiss/IndexIVFPQ.h>

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

/** What every IndexIVFMultiAssign has beside its FAISS base class: an index
 * can be cast to it (dynamic_cast) whatever its codec.
 */
struct IVFMultiAssign {
    MultiAssign assigner; ///< where vectors are stored; applies to later adds
    FlashGMMOptions gmm;  ///< how train() fits the mixture

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
    Mixture mixture_;
    size_t n_copies_ = 0; ///< entries beyond one a vector
    int max_copies_ = 1;  ///< the most entries of one id
    idx_t max_id_ = -1;   ///< the largest id ever added
};

/** An IVF index that stores a vector in one or two inverted lists, as
 * `assigner` says, and returns each vector once.
 *
 * It is a `Base`: what FAISS does with one by cast works (AutoTune, ivflib,
 * IndexPreTransform, IndexRefine, ...). The contract:
 *
 * - ntotal counts vectors, nentries() what is stored.
 * - No search returns an id twice. Of two copies the smaller distance is
 *   kept (the codes of a residual codec differ). If k different ids are
 *   reachable, k are returned; the rest is label -1, as in stock FAISS.
 * - Without second copies, results are bit-identical to `Base`.
 * - Ids are the caller's or given by add(). Any int64 but -1, which stands
 *   for "no result"; no two vectors may share one. add() without ids
 *   continues after the largest id ever added, so that no live id is issued
 *   again.
 * - Rows and training vectors must be finite: add() and train() throw, naming
 *   row and column. A query that is not finite finds what it finds, at most
 *   nothing. Rows that the quantizer assigns to no list (-1) are counted and
 *   not stored, as in stock FAISS.
 * - Errors are faiss::FaissException, thrown before anything changes, also
 *   where stock FAISS aborts.
 * - Only L2 and inner product.
 *
 * Concurrent searches are safe; changes exclude everything else.
 *
 * Not virtual in FAISS, so bypassed through an IndexIVF pointer:
 * make_direct_map, set_direct_map_type and, before 1.10, add_sa_codes (all
 * still give a valid index), before 1.7.4 range_search_preassigned (which
 * then returns repeats), and replace_invlists (call recount() after it).
 */
template <class Base>
struct IndexIVFMultiAssign : Base, IVFMultiAssign {
    using Base::Base;
    IndexIVFMultiAssign() = default;

    /** Takes over the lists and the codec of a stock index, which may hold
     * vectors. `stock` gives up what it owns; delete it afterwards.
     *
     * @param stock     its type is Base, not derived from it
     */
    explicit IndexIVFMultiAssign(Base&& stock);

    IndexIVFMultiAssign(const IndexIVFMultiAssign&) = delete;
    IndexIVFMultiAssign& operator=(const IndexIVFMultiAssign&) = delete;

    void set_mixture(const Mixture& mixture) override;
    void assign_lists(idx_t n, const float* x, idx_t* lists) const override;
    size_t nentries() const override;
    ListStatistics list_statistics() const override;
    void recount() override;

    /** Fits a mixture of nlist components, makes its means the centroids, and
     * trains the codec. The parameters of the fit are `cp` and `gmm`.
     *
     * A quantizer that holds nlist trained centroids keeps them, and one with
     * quantizer_trains_alone = 1 trains itself; then, if the policy needs a
     * mixture and none is set, variances and weights are fitted around these
     * centroids.
     *
     * The index must be empty. An exception leaves it as it was.
     */
    void train(idx_t n, const float* x) override;

    void add_with_ids(idx_t n, const float* x, const idx_t* xids) override;

    /// @param precomputed_idx  the primary lists, size n; -1: not stored
    void add_core(
            idx_t n,
            const float* x,
            const idx_t* xids,
            const idx_t* precomputed_idx FAISS_FLASHGMM_LISTS_CONTEXT(
                    void* inverted_list_context = nullptr)) override;

    /// A standalone code names its list: the vector is stored there alone.
    void add_sa_codes(idx_t n, const uint8_t* codes, const idx_t* xids)
            FAISS_FLASHGMM_OVERRIDE_SINCE_1_10;

    void search(
            idx_t n,
            const float* x,
            idx_t k,
            float* distances,
            idx_t* labels,
            const faiss::SearchParameters* params = nullptr) const override;

    void search_preassigned(
            idx_t n,
            const float* x,
            idx_t k,
            const idx_t* assign,
            const float* centroid_dis,
            float* distances,
            idx_t* labels,
            bool store_pairs,
            const faiss::IVFSearchParameters* params = nullptr,
            faiss::IndexIVFStats* stats = nullptr) const override;

    /// parallel_mode 0 to 2, as stock FAISS.
    void range_search(
            idx_t n,
            const float* x,
            float radius,
            faiss::RangeSearchResult* result,
            const faiss::SearchParameters* params = nullptr) const override;

    void range_search_preassigned(
            idx_t nx,
            const float* x,
            float radius,
            const idx_t* keys,
            const float* coarse_dis,
            faiss::RangeSearchResult* result,
            bool store_pairs = false,
            const faiss::IVFSearchParameters* params = nullptr,
            faiss::IndexIVFStats* stats = nullptr) const
            FAISS_FLASHGMM_OVERRIDE_SINCE_1_7_4;

    void search_and_reconstruct(
            idx_t n,
            const float* x,
            idx_t k,
            float* distances,
            idx_t* labels,
            float* recons,
            const faiss::SearchParameters* params = nullptr) const override;

#if FAISS_FLASHGMM_HAS_SEARCH1
    /// Not offered while second copies are stored: the handler would see them.
    void search1(
            const float* x,
            faiss::ResultHandler& handler,
            faiss::SearchParameters* params = nullptr) const override;
#endif

    /// The primary copy, if the direct map was there when the vector was
    /// added, else one of the two.
    void reconstruct(idx_t key, float* recons) const override;

    void make_direct_map(bool new_maintain_direct_map = true);
    void set_direct_map_type(faiss::DirectMap::Type type);

    /// Removes all copies; returns the number of vectors. With a direct map of
    /// type Array it throws, as in stock FAISS.
    size_t remove_ids(const faiss::IDSelector& sel) override;

    /// Needs a direct map. All ids must be there, each given once.
    void update_vectors(int nv, const idx_t* idx, const float* v) override;

    void reset() override;

    /// Throws if both indexes (after add_id) hold the same id.
    void merge_from(faiss::Index& otherIndex, idx_t add_id = 0) override;

    /** Copies the vectors with ids in [a1, a2) (subset type 0) or
     * id % a1 == a2 (type 1). Other types would separate the copies of a
     * vector: they throw if there are any.
     *
     * @param other     holds none of these ids; of a multi-assign type if
     *                  second copies are copied
     */
    void copy_subset_to(
            faiss::IndexIVF& other,
            SubsetType subset_type,
            idx_t a1,
            idx_t a2) const override;

   private:
    void check_complete() const;
    void check_usable() const;
    void check_can_add(idx_t n, const float* x, const idx_t* xids) const;
    void check_can_search(idx_t n) const;
    void check_preassigned(
            idx_t n,
            const idx_t* keys,
            bool store_pairs,
            const faiss::IVFSearchParameters* params) const;
    void check_range_search(idx_t n, const faiss::RangeSearchResult* result)
            const;
    idx_t first_foreign_mean(const Mixture& mixture) const;
    void fit_around_centroids(
            FlashGMMClustering& clustering,
            idx_t n,
            const float* x) const;
    std::vector<idx_t> next_ids(idx_t n) const;
    std::vector<idx_t> stored_ids() const;
    idx_t id_of_pair(idx_t pair) const;
    void make_unique(faiss::RangeSearchResult& result, bool store_pairs) const;
    void store(
            idx_t n,
            const float* x,
            const idx_t* xids,
            const idx_t* primary,
            void* inverted_list_context);
    void store_block(
            idx_t n,
            const float* x,
            const idx_t* ids,
            const idx_t* primary,
            const idx_t* extra,
            void* inverted_list_context);
    size_t remove_entries(const faiss::IDSelector& sel);
};

using IndexIVFFlatMultiAssign = IndexIVFMultiAssign<faiss::IndexIVFFlat>;
using IndexIVFPQMultiAssign = IndexIVFMultiAssign<faiss::IndexIVFPQ>;

extern template struct IndexIVFMultiAssign<faiss::IndexIVFFlat>;
extern template struct IndexIVFMultiAssign<faiss::IndexIVFPQ>;

/** Replaces the IndexIVFFlat or IndexIVFPQ in `index` by its multi-assign
 * type, so that strings of faiss::index_factory serve to make one.
 *
 * Looks through IndexPreTransform and IndexIDMap(2), which must own what they
 * wrap. Throws faiss::FaissException, leaving `index` as it was, if there is
 * no such index inside.
 *
 * @return the multi-assign part, owned by `index`
 */
IVFMultiAssign* make_multi_assign(
        std::unique_ptr<faiss::Index>& index,
        const MultiAssign& assigner = {},
        const FlashGMMOptions& gmm = {});

} // namespace faiss_flashgmm
