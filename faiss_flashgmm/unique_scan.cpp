#include <faiss_flashgmm/unique_scan.h>

#if FAISS_FLASHGMM_HAS_SEARCH1

#include <algorithm>
#include <memory>

#include <faiss/impl/AuxIndexStructures.h>
#include <faiss/impl/IDSelector.h>

#include <faiss_flashgmm/UniqueBuffer.h>
#include <faiss_flashgmm/ivf_checks.h>

namespace faiss_flashgmm {

namespace {

/// Has the first codes of a list on their way while another one is scanned.
void prefetch(const faiss::ArrayInvertedLists& lists, idx_t list) {
    constexpr size_t kBytes = 1024, kCacheLine = 64;
    if (list >= 0) {
        const uint8_t* codes = lists.get_codes(list);
        const size_t size = lists.list_size(list) * lists.code_size;
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
    UniqueBuffer buffer(
            k, ivf.ntotal, ivf.metric_type == faiss::METRIC_INNER_PRODUCT);
    const auto* in_memory =
            dynamic_cast<const faiss::ArrayInvertedLists*>(ivf.invlists);
    size_t n_lists = 0;
    for (idx_t i = 0; i < n; i++) {
        scanner->set_query(x + i * ivf.d);
        buffer.begin();
        for (idx_t j = i * nprobe; j < (i + 1) * nprobe; j++) {
            const idx_t list = keys[j];
            const size_t size = list < 0 ? 0 : ivf.invlists->list_size(list);
            if (in_memory && j + 1 < (i + 1) * nprobe) {
                prefetch(*in_memory, keys[j + 1]);
            }
            if (size == 0) {
                continue;
            }
            scanner->set_list(list, coarse_dis[j]);
            faiss::InvertedLists::ScopedCodes codes(ivf.invlists, list);
            faiss::InvertedLists::ScopedIds ids(ivf.invlists, list);
            scanner->scan_codes(size, codes.get(), ids.get(), buffer);
            n_lists++;
        }
        buffer.end(distances + i * k, labels + i * k);
        faiss::InterruptCallback::check();
    }
    if (!stats) {
        stats = &faiss::indexIVF_stats;
    }
    stats->nq += n;
    stats->nlist += n_lists;
    stats->ndis += buffer.stats.scan_cnt;
    stats->nheap_updates += buffer.stats.nheap_updates;
}

} // namespace faiss_flashgmm

#endif
