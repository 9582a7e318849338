#pragma once

// The inverted lists and the direct map of an index that stores a vector in
// several lists, whatever its codec. Nothing here changes ntotal.

#include <cstddef>
#include <vector>

#include <faiss/IndexIVF.h>
#include <faiss/impl/IDSelector.h>

#include <faiss_flashgmm/IVFMultiAssign.h>
#include <faiss_flashgmm/compat.h>

namespace faiss_flashgmm {

/// The ids of all entries, or of those that `sel` has, in order.
std::vector<idx_t> sorted_ids(
        const faiss::IndexIVF& ivf,
        const faiss::IDSelector* sel = nullptr);

size_t count_distinct(const std::vector<idx_t>& sorted);

/// Throws if two sorted lists share an id.
void check_disjoint(const std::vector<idx_t>& a, const std::vector<idx_t>& b);

/// Adds `offset` to each id. Throws if one becomes invalid.
void shift_ids(std::vector<idx_t>& ids, idx_t offset);

/// The ids that add() gives to n vectors.
std::vector<idx_t> next_ids(const faiss::IndexIVF& ivf, idx_t max_id, idx_t n);

/// The id behind a label of a search, with store_pairs or without.
struct IdOfLabel {
    const faiss::IndexIVF& ivf;
    bool store_pairs;

    idx_t operator()(idx_t label) const;
};

/// The ids that copy_subset_to copies: those in [a1, a2) for type 0, those
/// with id % a1 == a2 for type 1.
struct SubsetIds : faiss::IDSelector {
    /// Throws if a1 is no modulus.
    SubsetIds(int type, idx_t a1, idx_t a2);

    bool is_member(idx_t id) const override;

   private:
    int type_;
    idx_t a1_, a2_;
};

/// Throws if an id has more entries than an assigner gives it.
EntryCounts count_entries(const faiss::IndexIVF& ivf);

ListStatistics measure_lists(const faiss::IndexIVF& ivf);

struct AddedEntries {
    size_t copies = 0;  ///< entries beyond one a row in a list
    int max_copies = 0; ///< the most entries of one row
};

/** Encodes and stores n rows, with their primary entries in the direct map.
 * If an entry cannot be stored, takes back those that were.
 *
 * @param lists     size n * width: the lists of a row, the primary one first;
 *                  -1: none from here on
 */
AddedEntries add_entries(
        faiss::IndexIVF& ivf,
        idx_t n,
        const float* x,
        const idx_t* ids,
        const idx_t* lists,
        int width,
        void* inverted_list_context);

/// Stores a code as it is, and enters it in the direct map.
void append_code(
        faiss::IndexIVF& ivf,
        size_t list,
        idx_t id,
        const uint8_t* code);

struct RemovedEntries {
    size_t vectors = 0; ///< different ids
    size_t copies = 0;  ///< entries beyond one a vector
};

/// Removes the entries of the ids that `sel` has, also from the direct map.
RemovedEntries remove_entries(
        faiss::IndexIVF& ivf,
        const faiss::IDSelector& sel);

/// Appends the entries of the ids that `sel` has, plus `add_id`, to the same
/// lists of `to`, which has no direct map; to none of them if it fails.
void copy_entries(
        const faiss::IndexIVF& from,
        faiss::IndexIVF& to,
        const faiss::IDSelector& sel,
        idx_t add_id = 0);

} // namespace faiss_flashgmm
