#include <faiss_flashgmm/list_entries.h>

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <limits>
#include <utility>

#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/list_codes.h>

namespace faiss_flashgmm {

namespace {

/// An id with more entries than this is not the work of an assigner.
constexpr size_t kMostCopies = 8;

constexpr idx_t kLargestId = std::numeric_limits<idx_t>::max();

/// No place in a list.
constexpr size_t kNone = -1;

double imbalance_factor(const std::vector<size_t>& sizes) {
    double sum = 0, sum_squares = 0;
    for (size_t size : sizes) {
        sum += double(size);
        sum_squares += double(size) * double(size);
    }
    return sum == 0 ? 1 : double(sizes.size()) * sum_squares / (sum * sum);
}

/// Calls visit(list, offset, id) for each entry.
template <class Visit>
void for_each_entry(const faiss::IndexIVF& ivf, const Visit& visit) {
    for (size_t list = 0; list < ivf.nlist; list++) {
        const size_t size = ivf.invlists->list_size(list);
        faiss::InvertedLists::ScopedIds ids(ivf.invlists, list);
        for (size_t j = 0; j < size; j++) {
            visit(list, j, ids[j]);
        }
    }
}

/// Entries to store: row and list of each.
struct NewEntries {
    std::vector<idx_t> rows, lists;
    size_t n_stored = 0; ///< rows that are in a list
    int most_of_row = 0; ///< the most entries of one row
};

/// In the order of rows, so that lists are sorted by id wherever those of a
/// stock index are (IDSelectorRange::assume_sorted).
NewEntries entries_of_rows(idx_t n, const idx_t* lists, int width) {
    NewEntries entries;
    entries.rows.reserve(n * width);
    entries.lists.reserve(n * width);
    for (idx_t i = 0; i < n; i++) {
        const idx_t* of_row = lists + i * width;
        entries.n_stored += of_row[0] >= 0;
        int j = 0;
        for (; j < width && of_row[j] >= 0; j++) {
            entries.rows.push_back(i);
            entries.lists.push_back(of_row[j]);
        }
        entries.most_of_row = std::max(entries.most_of_row, j);
    }
    return entries;
}

std::vector<uint8_t> encode(
        const faiss::IndexIVF& ivf,
        idx_t n,
        const float* x,
        const NewEntries& entries) {
    const size_t d = ivf.d;
    const size_t n_entries = entries.rows.size();
    std::vector<float> gathered;
    if (entries.n_stored != size_t(n) || n_entries != entries.n_stored) {
        gathered.resize(n_entries * d);
        for (size_t e = 0; e < n_entries; e++) {
            std::copy_n(x + entries.rows[e] * d, d, gathered.data() + e * d);
        }
        x = gathered.data();
    }
    std::vector<uint8_t> codes(n_entries * ivf.code_size);
    ivf.encode_vectors(n_entries, x, entries.lists.data(), codes.data());
    return codes;
}

/// Sets lists back to the lengths that they had, unless told to keep() them.
class ListRollback {
   public:
    explicit ListRollback(const faiss::IndexIVF& ivf) : codes_(ivf) {
        for (size_t list = 0; list < ivf.nlist; list++) {
            sizes_.push_back(ivf.invlists->list_size(list));
        }
    }

    ~ListRollback() {
        for (size_t list = 0; list < sizes_.size(); list++) {
            codes_.shrink(list, sizes_[list]);
        }
    }

    void keep() {
        sizes_.clear();
    }

   private:
    ListCodes codes_;
    std::vector<size_t> sizes_;
};

/// Returns the offsets of the entries in their lists.
std::vector<size_t> append(
        faiss::IndexIVF& ivf,
        const NewEntries& entries,
        const idx_t* ids,
        const uint8_t* codes,
        void* inverted_list_context) {
    const std::vector<idx_t>& lists = entries.lists;
    const size_t n_entries = lists.size();
    std::vector<size_t> offsets(n_entries, kNone);
    ListCodes stored(ivf);
    std::exception_ptr failure;
#pragma omp parallel
    {
        // As stock FAISS: each thread owns a part of the lists.
        const idx_t n_threads = omp_get_num_threads();
        const idx_t rank = omp_get_thread_num();
        try {
            for (size_t e = 0; e < n_entries; e++) {
                if (lists[e] % n_threads == rank) {
                    offsets[e] = stored.append(
                            lists[e],
                            ids[entries.rows[e]],
                            codes + e * ivf.code_size,
                            inverted_list_context);
                }
            }
        } catch (...) {
#pragma omp critical(flashgmm_add_failure)
            failure = std::current_exception();
        }
    }
    if (failure) {
        for (size_t e = n_entries; e-- > 0;) {
            if (offsets[e] != kNone) {
                stored.shrink(lists[e], offsets[e]);
            }
        }
        std::rethrow_exception(failure);
    }
    return offsets;
}

void map_entry(faiss::DirectMap& map, idx_t id, idx_t place) {
    if (map.type == faiss::DirectMap::Array) {
        map.array.resize(std::max<size_t>(map.array.size(), id + 1), -1);
        map.array[id] = place;
    } else if (map.type == faiss::DirectMap::Hashtable) {
        map.hashtable[id] = place;
    }
}

void map_primary_entries(
        faiss::DirectMap& map,
        idx_t n,
        const idx_t* ids,
        const NewEntries& entries,
        const std::vector<size_t>& offsets) {
    if (map.type == faiss::DirectMap::Array) {
        // rows in no list have a place, too
        const idx_t largest_id = *std::max_element(ids, ids + n);
        map.array.resize(
                std::max<size_t>(map.array.size(), largest_id + 1), -1);
    }
    for (size_t e = 0; e < offsets.size(); e++) {
        if (e == 0 || entries.rows[e] != entries.rows[e - 1]) {
            map_entry(
                    map,
                    ids[entries.rows[e]],
                    faiss::lo_build(entries.lists[e], offsets[e]));
        }
    }
}

/// The entry at `from`, if the map points to it, is at `to` now.
void move_in_map(faiss::DirectMap& map, idx_t id, idx_t from, idx_t to) {
    if (map.type == faiss::DirectMap::Array && map.array[id] == from) {
        map.array[id] = to;
    } else if (map.type == faiss::DirectMap::Hashtable) {
        auto entry = map.hashtable.find(id);
        if (entry != map.hashtable.end() && entry->second == from) {
            entry->second = to;
        }
    }
}

void erase_from_map(faiss::DirectMap& map, idx_t id) {
    if (map.type == faiss::DirectMap::Array) {
        map.array[id] = -1;
    } else if (map.type == faiss::DirectMap::Hashtable) {
        map.hashtable.erase(id);
    }
}

} // namespace

/*************************************************************************
 * Ids
 *************************************************************************/

std::vector<idx_t> sorted_ids(
        const faiss::IndexIVF& ivf,
        const faiss::IDSelector* sel) {
    std::vector<idx_t> ids;
    ids.reserve(ivf.invlists->compute_ntotal());
    for_each_entry(ivf, [&](size_t, size_t, idx_t id) {
        if (!sel || sel->is_member(id)) {
            ids.push_back(id);
        }
    });
    std::sort(ids.begin(), ids.end());
    return ids;
}

size_t count_distinct(const std::vector<idx_t>& sorted) {
    size_t distinct = 0;
    for (size_t i = 0; i < sorted.size(); i++) {
        distinct += i == 0 || sorted[i] != sorted[i - 1];
    }
    return distinct;
}

void check_disjoint(const std::vector<idx_t>& a, const std::vector<idx_t>& b) {
    for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
        FAISS_THROW_IF_NOT_FMT(
                a[i] != b[j], "both indexes hold the id %ld", long(a[i]));
        if (a[i] < b[j]) {
            i++;
        } else {
            j++;
        }
    }
}

void shift_ids(std::vector<idx_t>& ids, idx_t offset) {
    for (idx_t& id : ids) {
        const bool overflow = __builtin_add_overflow(id, offset, &id);
        FAISS_THROW_IF_NOT_FMT(
                !overflow && id != -1,
                "an id plus %ld is not a valid id",
                long(offset));
    }
}

std::vector<idx_t> next_ids(const faiss::IndexIVF& ivf, idx_t max_id, idx_t n) {
    // A direct map of type Array has a place for each id from 0 on.
    const bool array = ivf.direct_map.type == faiss::DirectMap::Array;
    FAISS_THROW_IF_NOT_MSG(
            array || max_id <= kLargestId - n,
            "add() continues after the largest id, and none is left there: "
            "use add_with_ids()");
    idx_t id = array ? idx_t(ivf.direct_map.array.size())
                     : std::max(max_id + 1, ivf.ntotal);
    std::vector<idx_t> ids(n);
    for (idx_t& next : ids) {
        next = id++;
    }
    return ids;
}

idx_t IdOfLabel::operator()(idx_t label) const {
    return store_pairs
            ? ivf.invlists->get_single_id(
                      faiss::lo_listno(label), faiss::lo_offset(label))
            : label;
}

SubsetIds::SubsetIds(int type, idx_t a1, idx_t a2)
        : type_(type), a1_(a1), a2_(a2) {
    FAISS_THROW_IF_NOT_FMT(
            type == 0 || a1 > 0, "ids modulo %ld are asked for", long(a1));
}

bool SubsetIds::is_member(idx_t id) const {
    return type_ == 0 ? a1_ <= id && id < a2_ : id % a1_ == a2_;
}

/*************************************************************************
 * Counts
 *************************************************************************/

EntryCounts count_entries(const faiss::IndexIVF& ivf) {
    const std::vector<idx_t> ids = sorted_ids(ivf);
    size_t run = 0, longest = 1;
    for (size_t i = 0; i < ids.size(); i++) {
        run = i > 0 && ids[i] == ids[i - 1] ? run + 1 : 1;
        FAISS_THROW_IF_NOT_FMT(
                run <= kMostCopies,
                "the id %ld is stored more than %zu times",
                long(ids[i]),
                kMostCopies);
        longest = std::max(longest, run);
    }
    EntryCounts counts;
    counts.vectors = count_distinct(ids);
    counts.copies = ids.size() - counts.vectors;
    counts.max_copies = int(longest);
    counts.largest_id = ids.empty() ? -1 : std::max<idx_t>(-1, ids.back());
    return counts;
}

ListStatistics measure_lists(const faiss::IndexIVF& ivf) {
    std::vector<std::pair<idx_t, size_t>> places; // id, list
    places.reserve(ivf.invlists->compute_ntotal());
    ListStatistics statistics;
    statistics.entries.resize(ivf.nlist);
    statistics.exclusive.resize(ivf.nlist);
    for_each_entry(ivf, [&](size_t list, size_t, idx_t id) {
        statistics.entries[list]++;
        places.emplace_back(id, list);
    });
    std::sort(places.begin(), places.end());
    for (size_t i = 0; i < places.size(); i++) {
        const idx_t id = places[i].first;
        const bool alone = (i == 0 || places[i - 1].first != id) &&
                (i + 1 == places.size() || places[i + 1].first != id);
        statistics.exclusive[places[i].second] += alone;
    }
    statistics.imbalance = imbalance_factor(statistics.entries);
    statistics.exclusive_imbalance = imbalance_factor(statistics.exclusive);
    return statistics;
}

/*************************************************************************
 * Changes
 *************************************************************************/

AddedEntries add_entries(
        faiss::IndexIVF& ivf,
        idx_t n,
        const float* x,
        const idx_t* ids,
        const idx_t* lists,
        int width,
        void* inverted_list_context) {
    const NewEntries entries = entries_of_rows(n, lists, width);
    const std::vector<uint8_t> codes = encode(ivf, n, x, entries);
    const std::vector<size_t> offsets =
            append(ivf, entries, ids, codes.data(), inverted_list_context);
    map_primary_entries(ivf.direct_map, n, ids, entries, offsets);
    return {offsets.size() - entries.n_stored, entries.most_of_row};
}

void append_code(
        faiss::IndexIVF& ivf,
        size_t list,
        idx_t id,
        const uint8_t* code) {
    const size_t offset = ListCodes(ivf).append(list, id, code);
    map_entry(ivf.direct_map, id, faiss::lo_build(list, offset));
}

RemovedEntries remove_entries(
        faiss::IndexIVF& ivf,
        const faiss::IDSelector& sel) {
    std::vector<std::pair<size_t, size_t>> places; // list, offset
    std::vector<idx_t> removed;
    for_each_entry(ivf, [&](size_t list, size_t offset, idx_t id) {
        if (sel.is_member(id)) {
            places.emplace_back(list, offset);
            removed.push_back(id);
        }
    });

    // From the end of each list, so that its last entry always stays.
    ListCodes stored(ivf);
    std::vector<uint8_t> code(ivf.code_size);
    for (size_t p = places.size(); p-- > 0;) {
        const auto [list, offset] = places[p];
        const size_t last = ivf.invlists->list_size(list) - 1;
        if (offset != last) {
            const idx_t id = ivf.invlists->get_single_id(list, last);
            stored.read(list, last, code.data());
            stored.write(list, offset, id, code.data());
            move_in_map(
                    ivf.direct_map,
                    id,
                    faiss::lo_build(list, last),
                    faiss::lo_build(list, offset));
        }
        stored.shrink(list, last);
    }

    for (idx_t id : removed) {
        erase_from_map(ivf.direct_map, id);
    }
    std::sort(removed.begin(), removed.end());
    const size_t n_vectors = count_distinct(removed);
    return {n_vectors, removed.size() - n_vectors};
}

void copy_entries(
        const faiss::IndexIVF& from,
        faiss::IndexIVF& to,
        const faiss::IDSelector& sel,
        idx_t add_id) {
    const ListCodes source(from);
    ListCodes target(to);
    ListRollback rollback(to);
    std::vector<uint8_t> code(from.code_size);
    for_each_entry(from, [&](size_t list, size_t offset, idx_t id) {
        if (sel.is_member(id)) {
            source.read(list, offset, code.data());
            target.append(list, id + add_id, code.data());
        }
    });
    rollback.keep();
}

} // namespace faiss_flashgmm
