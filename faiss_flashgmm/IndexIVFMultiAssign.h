#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <faiss/IndexIVF.h>
#include <faiss/IndexIVFFlat.h>
#include <faiss/IndexIVFPQ.h>
#include <faiss/IndexIVFPQFastScan.h>
#include <faiss/IndexScalarQuantizer.h>

#include <faiss_flashgmm/IVFMultiAssign.h>
#include <faiss_flashgmm/UniqueIVFPQFastScan.h>
#include <faiss_flashgmm/compat.h>
#include <faiss_flashgmm/make_multi_assign.h>

#if FAISS_FLASHGMM_HAS_RABITQ
#include <faiss/IndexIVFRaBitQ.h>
#endif
#if FAISS_FLASHGMM_HAS_RABITQ_FAST_SCAN
#include <faiss/IndexIVFRaBitQFastScan.h>
#endif

namespace faiss_flashgmm {

/// What IndexIVFMultiAssign<Base> derives from: Base, or a class on top of it.
template <class Base>
using IVFMultiAssignBase = std::conditional_t<
        std::is_same_v<Base, faiss::IndexIVFPQFastScan>,
        UniqueIVFPQFastScan,
        Base>;

/** An IVF index that stores a vector in one or several inverted lists, as
 * `assigner` says, and returns each vector once.
 *
 * It is a `Base`: what FAISS does with one by cast works (AutoTune, ivflib,
 * IndexPreTransform, IndexRefine, ...). The contract:
 *
 * - ntotal counts vectors, nentries() what is stored.
 * - No search returns an id twice. Of its copies the smallest distance is
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
struct IndexIVFMultiAssign : IVFMultiAssignBase<Base>, IVFMultiAssign {
    using Parent = IVFMultiAssignBase<Base>;
    using Parent::Parent;
    IndexIVFMultiAssign() = default;

    static constexpr bool kPQFastScan =
            std::is_same_v<Base, faiss::IndexIVFPQFastScan>;

    /** Takes over the lists and the codec of a stock index, which may hold
     * vectors. `stock` gives up what it owns; delete it afterwards.
     *
     * @param stock     its type is Base, not derived from it
     * @param known     counts() of the lists, trusted; null: the lists are
     *                  read
     */
    explicit IndexIVFMultiAssign(
            Base&& stock,
            const EntryCounts* known = nullptr);

    /// The FastScan form of a PQ index, which must outlive it.
    explicit IndexIVFMultiAssign(
            const faiss::IndexIVFPQ& orig,
            int bbs = 32) requires kPQFastScan : Parent(orig, bbs) {
        recount();
    }

    IndexIVFMultiAssign(const IndexIVFMultiAssign&) = delete;
    IndexIVFMultiAssign& operator=(const IndexIVFMultiAssign&) = delete;

    void set_mixture(const Mixture& mixture) override;
    void assign_lists(idx_t n, const float* x, idx_t* lists) const override;
    size_t nentries() const override;
    EntryCounts counts() const override;
    ListStatistics list_statistics() const override;
    void recount() override;

    /** Fits a mixture of nlist components, makes its means the centroids, and
     * trains the codec. The parameters of the fit are `cp` and `gmm`.
     *
     * A quantizer that holds nlist trained centroids keeps them, one with
     * quantizer_trains_alone = 1 trains itself, and kmeans_centroids leaves it
     * to FAISS; then, if the policy needs a mixture and none is set, variances
     * and weights are fitted around these centroids.
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
    /** Hands each id to `handler` once, with its best distance. If the codes of
     * copies differ (by_residual), results reach the handler when all lists are
     * scanned. FastScan takes no handler of the caller's.
     */
    void search1(
            const float* x,
            faiss::ResultHandler& handler,
            faiss::SearchParameters* params = nullptr) const override;
#endif

    /// The primary copy, if the direct map was there when the vector was
    /// added, else one of them.
    void reconstruct(idx_t key, float* recons) const override;

    void reconstruct_from_offset(int64_t list_no, int64_t offset, float* recons)
            const override;

    void make_direct_map(bool new_maintain_direct_map = true);
    void set_direct_map_type(faiss::DirectMap::Type type);

    /// Removes all copies; returns the number of vectors. With a direct map of
    /// type Array it throws, as in stock FAISS, and below an IndexIDMap, where
    /// stock FAISS mixes up the ids of what is left (not noticed before 1.8).
    size_t remove_ids(const faiss::IDSelector& sel) override;

    /// Needs a direct map. All ids must be there, each given once.
    void update_vectors(int nv, const idx_t* idx, const float* v) override;

    void reset() override;

    /// Throws if both indexes (after add_id) hold the same id, unless all
    /// vectors are in one list and the policy is `single`.
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
    static constexpr bool kFastScan =
            std::is_base_of_v<faiss::IndexIVFFastScan, Base>;
#if FAISS_FLASHGMM_HAS_RABITQ_FAST_SCAN
    static constexpr bool kRaBitQFastScan =
            std::is_base_of_v<faiss::IndexIVFRaBitQFastScan, Base>;
#else
    static constexpr bool kRaBitQFastScan = false;
#endif

    /// Rows encoded at once by add().
    static constexpr idx_t kAddBlock = 16384;

    void set_counts(const EntryCounts& counts);
    bool is_bulk(idx_t n) const;
    void check_can_add(idx_t n, const float* x, const idx_t* xids) const;
    void make_unique(faiss::RangeSearchResult& result, bool store_pairs) const;
    void store(
            idx_t n,
            const float* x,
            const idx_t* xids,
            const idx_t* primary,
            void* inverted_list_context);
    size_t remove(const faiss::IDSelector& sel);
};

#if FAISS_FLASHGMM_HAS_RABITQ
#define FAISS_FLASHGMM_RABITQ_CODEC(DO) DO(IndexIVFRaBitQ)
#else
#define FAISS_FLASHGMM_RABITQ_CODEC(DO)
#endif
#if FAISS_FLASHGMM_HAS_RABITQ_FAST_SCAN
#define FAISS_FLASHGMM_RABITQ_FAST_SCAN_CODEC(DO) DO(IndexIVFRaBitQFastScan)
#else
#define FAISS_FLASHGMM_RABITQ_FAST_SCAN_CODEC(DO)
#endif

/// DO(type) for each index type of FAISS that this version offers.
#define FAISS_FLASHGMM_FOR_EACH_CODEC(DO) \
    DO(IndexIVFFlat)                      \
    DO(IndexIVFScalarQuantizer)           \
    DO(IndexIVFPQ)                        \
    DO(IndexIVFPQFastScan)                \
    FAISS_FLASHGMM_RABITQ_CODEC(DO)       \
    FAISS_FLASHGMM_RABITQ_FAST_SCAN_CODEC(DO)

/// IndexIVFFlatMultiAssign and so on.
#define FAISS_FLASHGMM_DECLARE(type)                            \
    using type##MultiAssign = IndexIVFMultiAssign<faiss::type>; \
    extern template struct IndexIVFMultiAssign<faiss::type>;
FAISS_FLASHGMM_FOR_EACH_CODEC(FAISS_FLASHGMM_DECLARE)
#undef FAISS_FLASHGMM_DECLARE

} // namespace faiss_flashgmm
