#include <faiss_flashgmm/ivf_checks.h>

#include <algorithm>
#include <unordered_set>

#include <faiss/IndexIVFFastScan.h>
#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/utils/finite.h>

namespace faiss_flashgmm {

void check_complete(const faiss::IndexIVF& ivf) {
    FAISS_THROW_IF_NOT_MSG(
            ivf.quantizer && ivf.invlists,
            "the index has no quantizer or no inverted lists");
    FAISS_THROW_IF_NOT_FMT(
            ivf.metric_type == faiss::METRIC_L2 ||
                    ivf.metric_type == faiss::METRIC_INNER_PRODUCT,
            "metric %d is neither L2 nor inner product",
            int(ivf.metric_type));
}

void check_usable(const faiss::IndexIVF& ivf) {
    check_complete(ivf);
    FAISS_THROW_IF_NOT_MSG(
            ivf.is_trained, "the index is not trained: call train()");
}

void check_finite(idx_t n, size_t d, const float* x) {
    const size_t size = n * d;
    const size_t i = first_not_finite(size, x);
    FAISS_THROW_IF_NOT_FMT(
            i == size, "row %zu, column %zu is %g", i / d, i % d, x[i]);
}

void check_ids(idx_t n, const idx_t* ids) {
    for (idx_t i = 0; i < n; i++) {
        FAISS_THROW_IF_NOT_FMT(
                ids[i] != -1,
                "vector %ld has the id -1, which means no result",
                long(i));
    }
}

void check_known_once(const faiss::DirectMap& map, idx_t n, const idx_t* ids) {
    std::unordered_set<idx_t> given;
    for (idx_t i = 0; i < n; i++) {
        const bool known = map.type == faiss::DirectMap::Array
                ? ids[i] >= 0 && ids[i] < idx_t(map.array.size())
                : map.hashtable.count(ids[i]) > 0;
        FAISS_THROW_IF_NOT_FMT(
                known, "there is no vector with the id %ld", long(ids[i]));
        FAISS_THROW_IF_NOT_FMT(
                given.insert(ids[i]).second,
                "the id %ld is given twice",
                long(ids[i]));
    }
}

void check_lists(
        const faiss::IndexIVF& ivf,
        size_t n,
        size_t width,
        const idx_t* lists,
        const char* what) {
    for (size_t i = 0; i < n * width; i++) {
        FAISS_THROW_IF_NOT_FMT(
                lists[i] < idx_t(ivf.nlist),
                "%s %zu is assigned to list %ld of %zu",
                what,
                i / width,
                long(lists[i]),
                ivf.nlist);
    }
}

void check_search(const faiss::IndexIVF& ivf, idx_t n, bool has_copies) {
    check_usable(ivf);
    FAISS_THROW_IF_NOT_FMT(n >= 0, "%ld queries", long(n));
    const int flag = ivf.PARALLEL_MODE_NO_HEAP_INIT;
    const int mode = ivf.parallel_mode & ~flag;
    FAISS_THROW_IF_NOT_FMT(mode >= 0 && mode <= 3, "parallel_mode is %d", mode);
    FAISS_THROW_IF_NOT_MSG(
            !has_copies || !(ivf.parallel_mode & flag),
            "PARALLEL_MODE_NO_HEAP_INIT is not possible with vectors in two "
            "lists");
}

idx_t probes_a_query(
        const faiss::IndexIVF& ivf,
        const faiss::IVFSearchParameters* params) {
    const size_t nprobe = params ? params->nprobe : ivf.nprobe;
    FAISS_THROW_IF_NOT_MSG(nprobe > 0, "nprobe is 0");
    const bool fast_scan = dynamic_cast<const faiss::IndexIVFFastScan*>(&ivf);
    return fast_scan ? nprobe : std::min(ivf.nlist, nprobe);
}

void check_preassigned(
        const faiss::IndexIVF& ivf,
        idx_t n,
        const idx_t* keys,
        bool store_pairs,
        const faiss::IVFSearchParameters* params) {
    FAISS_THROW_IF_NOT_MSG(
            !(store_pairs && params && params->sel),
            "selector and store_pairs cannot be combined");
    const idx_t nprobe = probes_a_query(ivf, params);
    if (keys) {
        check_lists(ivf, n, nprobe, keys, "query");
    }
}

void check_range_search(
        const faiss::IndexIVF& ivf,
        idx_t n,
        const faiss::RangeSearchResult* result) {
    check_usable(ivf);
    FAISS_THROW_IF_NOT_FMT(
            ivf.parallel_mode >= 0 && ivf.parallel_mode <= 2,
            "range search has no parallel_mode %d",
            ivf.parallel_mode);
    FAISS_THROW_IF_NOT_FMT(
            idx_t(result->nq) == n,
            "a result for %zu queries is given for %ld",
            result->nq,
            long(n));
    FAISS_THROW_IF_NOT_MSG(
            !result->labels && !result->distances,
            "the result of another search is given");
}

void check_copy(const faiss::IndexIVF& from, const faiss::IndexIVF& to) {
    FAISS_THROW_IF_NOT_MSG(&to != &from, "an index cannot be copied to itself");
    FAISS_THROW_IF_NOT_FMT(
            to.nlist == from.nlist && to.code_size == from.code_size,
            "the other index has %zu lists of codes of %zu bytes, not %zu of "
            "%zu",
            to.nlist,
            to.code_size,
            from.nlist,
            from.code_size);
    FAISS_THROW_IF_NOT_MSG(
            to.direct_map.no(), "the other index has a direct map");
}

} // namespace faiss_flashgmm
