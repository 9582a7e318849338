#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <unordered_set>
#include <vector>

#include <faiss/impl/AuxIndexStructures.h>
#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/compat.h>

#if FAISS_FLASHGMM_HAS_SEARCH1
#include <faiss/impl/ResultHandler.h>
#endif

namespace faiss_flashgmm {

/// Remembers the position of each id seen since the last reset(), which takes
/// constant time.
class SeenIds {
   public:
    /// Forgets all ids and makes room for `capacity` of them.
    void reset(size_t capacity) {
        while (size_t(1) << log2_size_ < 2 * capacity) {
            log2_size_++;
        }
        if (slots_.size() < size_t(1) << log2_size_) {
            slots_.assign(size_t(1) << log2_size_, Slot());
            epoch_ = 0;
        }
        epoch_++;
    }

    /// The position `id` was first inserted with: `position`, if it is new.
    size_t insert(idx_t id, size_t position) {
        // Fibonacci hashing: ids in sequence, or multiples, spread well
        size_t i = (uint64_t(id) * 0x9E3779B97F4A7C15u) >> (64 - log2_size_);
        while (slots_[i].epoch == epoch_ && slots_[i].id != id) {
            i = (i + 1) & (slots_.size() - 1);
        }
        if (slots_[i].epoch != epoch_) {
            slots_[i] = {epoch_, id, position};
        }
        return slots_[i].position;
    }

   private:
    struct Slot {
        uint64_t epoch = 0;
        idx_t id = 0;
        size_t position = 0;
    };
    std::vector<Slot> slots_;
    uint64_t epoch_ = 0;
    int log2_size_ = 1;
};

/** Puts a result among the k best ones of different ids, unless these, or its
 * copy, are better. Takes k steps.
 *
 * @param loss      less is better; of equal ones the smaller id comes first
 * @param size      results held
 * @param losses    room for k, best first
 * @param ids       as losses
 * @return          the new size
 */
template <class Loss>
size_t insert_unique(
        Loss loss,
        idx_t id,
        size_t k,
        size_t size,
        Loss* losses,
        idx_t* ids) {
    const auto is_better_than = [&](size_t i) {
        return loss < losses[i] || (loss == losses[i] && id < ids[i]);
    };
    size_t at = 0;
    while (at < size && ids[at] != id) {
        at++;
    }
    if (at == size && size < k) {
        size++;
    } else {
        at = std::min(at, size - 1);
        if (!is_better_than(at)) {
            return size;
        }
    }
    for (; at > 0 && is_better_than(at - 1); at--) {
        losses[at] = losses[at - 1];
        ids[at] = ids[at - 1];
    }
    losses[at] = loss;
    ids[at] = id;
    return size;
}

struct UniqueTopk {
    size_t kept = 0; ///< results that are not missing
    size_t read = 0; ///< results given, up to the last one kept
};

/** Keeps the first, so the best, result of each id.
 *
 * @param n_in      number of results, best first; label -1: none
 * @param id_of     id of a label
 * @param k         results to write; those missing are filled with label -1
 *                  and distance `no_result`
 */
template <class IdOf>
UniqueTopk unique_topk(
        size_t n_in,
        const float* distances_in,
        const idx_t* labels_in,
        const IdOf& id_of,
        float no_result,
        size_t k,
        float* distances,
        idx_t* labels,
        SeenIds& seen) {
    seen.reset(n_in);
    UniqueTopk result;
    size_t& kept = result.kept;
    for (size_t j = 0; j < n_in && kept < k; j++) {
        if (labels_in[j] != -1 && seen.insert(id_of(labels_in[j]), j) == j) {
            distances[kept] = distances_in[j];
            labels[kept] = labels_in[j];
            kept++;
            result.read = j + 1;
        }
    }
    std::fill(distances + kept, distances + k, no_result);
    std::fill(labels + kept, labels + k, idx_t(-1));
    return result;
}

/** Keeps the best result of each id, in place. Does nothing the second time.
 *
 * @param similarity    whether a larger distance is better
 */
template <class IdOf>
void unique_range(
        faiss::RangeSearchResult& result,
        const IdOf& id_of,
        bool similarity) {
    SeenIds seen;
    size_t kept = 0;
    for (size_t i = 0; i < result.nq; i++) {
        const size_t begin = result.lims[i];
        const size_t end = result.lims[i + 1];
        result.lims[i] = kept;
        seen.reset(end - begin);
        for (size_t j = begin; j < end; j++) {
            const idx_t label = result.labels[j];
            const float distance = result.distances[j];
            const size_t position = seen.insert(id_of(label), kept);
            if (position == kept) {
                kept++;
            } else if (
                    similarity ? distance <= result.distances[position]
                               : distance >= result.distances[position]) {
                continue;
            }
            result.labels[position] = label;
            result.distances[position] = distance;
        }
    }
    result.lims[result.nq] = kept;
}

#if FAISS_FLASHGMM_HAS_SEARCH1
/// Hands the results of one query on, each id once.
class UniqueHandler : public faiss::ResultHandler {
   public:
    /**
     * @param copies_differ  whether the distances of copies do; if so, nothing
     *                       is handed on before finish(), and then the best
     * @param similarity     whether a larger distance is better
     */
    UniqueHandler(
            faiss::ResultHandler& handler,
            bool copies_differ,
            bool similarity)
            : handler_(handler),
              copies_differ_(copies_differ),
              similarity_(similarity) {
        threshold = handler.threshold;
        stats = handler.stats;
    }

    bool add_result(float distance, idx_t id) override {
        if (!copies_differ_) {
            return seen_.insert(id).second && hand_on(distance, id);
        }
        auto [entry, is_new] = best_.emplace(id, distance);
        if (!is_new &&
            (similarity_ ? distance > entry->second
                         : distance < entry->second)) {
            entry->second = distance;
        }
        return false;
    }

    void finish() {
        for (auto [id, distance] : best_) {
            hand_on(distance, id);
        }
        handler_.stats = stats;
    }

   private:
    bool hand_on(float distance, idx_t id) {
        const bool better = similarity_ ? distance > handler_.threshold
                                        : distance < handler_.threshold;
        const bool changed = better && handler_.add_result(distance, id);
        threshold = handler_.threshold;
        return changed;
    }

    faiss::ResultHandler& handler_;
    bool copies_differ_, similarity_;
    std::unordered_set<idx_t> seen_;
    std::map<idx_t, float> best_; ///< in order, so that ties are
};
#endif

} // namespace faiss_flashgmm
