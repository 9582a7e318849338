#include <faiss_flashgmm/unique_scan.h>

#if FAISS_FLASHGMM_HAS_SEARCH1

#include <algorithm>
#include <memory>
#include <span>

#include <faiss/impl/AuxIndexStructures.h>
#include <faiss/impl/IDSelector.h>

#include <faiss_flashgmm/UniqueCollector.h>
#include <faiss_flashgmm/ivf_checks.h>

namespace faiss_flashgmm {

namespace {

/** While a list is scanned, has the first codes of the next one on their way,
 * and before that where they are.
 *
 * @param next      lists to be scanned, -1: none
 */
void prefetch(
        const faiss::ArrayInvertedLists& lists,
        std::span<const idx_t> next) {
    constexpr size_t kBytes = 1024, kCacheLine = 64, kAhead = 3;
    if (next.size() >= kAhead && next[kAhead - 1] >= 0) {
        __builtin_prefetch(&lists.codes[next[kAhead - 1]]);
        __builtin_prefetch(&lists.ids[next[kAhead - 1]]);
    }
    if (!next.empty() && next[0] >= 0) {
        const uint8_t* codes = lists.get_codes(next[0]);
        const size_t size = lists.list_size(next[0]) * lists.code_size;
        for (size_t i = 0; i < std::min(size, kBytes); i += kCacheLine) {
            __builtin_prefetch(codes + i);
        }
    }
}

} // namespace

bool can_scan_unique(
        const faiss::IndexIVF& ivf,
        bool store_pairs,
        const faiss::IVFSearchParameters* params) {
    const size_t max_codes = params ? params->max_codes : ivf.max_codes;
    if (store_pairs || max_codes != 0 || ivf.parallel_mode != 0 ||
        ivf.invlists->use_iterator) {
        return false;
    }
    if (!params) {
        return true;
    }
    const auto* range =
            dynamic_cast<const faiss::IDSelectorRange*>(params->sel);
    return !(range && range->assume_sorted) && !params->inverted_list_context &&
            !params->ensure_topk_full && params->max_lists_num == 0;
}

void scan_unique(
        const faiss::IndexIVF& ivf,
        idx_t n,
        const float* x,
        idx_t k,
        const idx_t* keys,
        const float* coarse_dis,
        float* distances,
        idx_t* labels,
        const faiss::IVFSearchParameters* params,
        faiss::IndexIVFStats* stats) {
    const idx_t nprobe = probes_a_query(ivf, params);
    const std::unique_ptr<faiss::InvertedListScanner> scanner(
            ivf.get_InvertedListScanner(
                    false, params ? params->sel : nullptr, params));
    const std::unique_ptr<UniqueCollector> results = make_unique_collector(
            k, ivf.ntotal, ivf.metric_type == faiss::METRIC_INNER_PRODUCT);
    const auto* in_memory =
            dynamic_cast<const faiss::ArrayInvertedLists*>(ivf.invlists);
    size_t n_lists = 0;
    for (idx_t i = 0; i < n; i++) {
        scanner->set_query(x + i * ivf.d);
        results->begin();
        const std::span probed(keys + i * nprobe, nprobe);
        for (idx_t j = 0; j < nprobe; j++) {
            const idx_t list = probed[j];
            const size_t size = list < 0 ? 0 : ivf.invlists->list_size(list);
            if (in_memory) {
                prefetch(*in_memory, probed.subspan(j + 1));
            }
            if (size == 0) {
                continue;
            }
            scanner->set_list(list, coarse_dis[i * nprobe + j]);
            faiss::InvertedLists::ScopedCodes codes(ivf.invlists, list);
            faiss::InvertedLists::ScopedIds ids(ivf.invlists, list);
            scanner->scan_codes(size, codes.get(), ids.get(), *results);
            n_lists++;
        }
        results->end(distances + i * k, labels + i * k);
        faiss::InterruptCallback::check();
    }
    if (!stats) {
        stats = &faiss::indexIVF_stats;
    }
    stats->nq += n;
    stats->nlist += n_lists;
    stats->ndis += results->stats.scan_cnt;
    stats->nheap_updates += results->stats.nheap_updates;
}

} // namespace faiss_flashgmm

#endif
