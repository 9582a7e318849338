#pragma once

// Puts multi-assign indexes where FAISS's own tests make stock ones.

#include <cstdlib>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>

#include <faiss/Index.h>
#include <faiss/IndexIDMap.h>
#include <faiss/IndexPreTransform.h>
#include <faiss/IndexRefine.h>

#include <faiss_flashgmm/IndexIVFMultiAssign.h>

namespace faiss_suites {

enum class Mode {
    stock,   ///< nothing is swapped
    single,  ///< one list a vector
    copies,  ///< two lists a vector, every vector
    repeats, ///< the same, with searches that do not drop repeated ids
};

/// From the environment variable FAISS_SUITES_MODE.
inline Mode mode() {
    static const Mode from_environment = [] {
        const char* value = std::getenv("FAISS_SUITES_MODE");
        const std::string name = value ? value : "stock";
        return name == "single"     ? Mode::single
                : name == "copies"  ? Mode::copies
                : name == "repeats" ? Mode::repeats
                                    : Mode::stock;
    }();
    return from_environment;
}

/// A multi-assign index as the mode says. Its centroids are those of k-means,
/// so that results can equal those of stock FAISS.
template <class Base>
struct Swapped : faiss_flashgmm::IndexIVFMultiAssign<Base> {
    using MultiAssign = faiss_flashgmm::IndexIVFMultiAssign<Base>;

    template <class... Args>
    explicit Swapped(Args&&... args)
            : MultiAssign(std::forward<Args>(args)...) {
        this->assigner.policy = mode() == Mode::single
                ? faiss_flashgmm::AssignPolicy::single
                : faiss_flashgmm::AssignPolicy::nearest;
        this->kmeans_centroids = true;
    }

    void search(
            faiss::idx_t n,
            const float* x,
            faiss::idx_t k,
            float* distances,
            faiss::idx_t* labels,
            const faiss::SearchParameters* params = nullptr) const override {
        mode() == Mode::repeats
                ? Base::search(n, x, k, distances, labels, params)
                : MultiAssign::search(n, x, k, distances, labels, params);
    }

    void search_preassigned(
            faiss::idx_t n,
            const float* x,
            faiss::idx_t k,
            const faiss::idx_t* assign,
            const float* centroid_dis,
            float* distances,
            faiss::idx_t* labels,
            bool store_pairs,
            const faiss::IVFSearchParameters* params = nullptr,
            faiss::IndexIVFStats* stats = nullptr) const override {
        if (mode() == Mode::repeats) {
            Base::search_preassigned(
                    n,
                    x,
                    k,
                    assign,
                    centroid_dis,
                    distances,
                    labels,
                    store_pairs,
                    params,
                    stats);
        } else {
            MultiAssign::search_preassigned(
                    n,
                    x,
                    k,
                    assign,
                    centroid_dis,
                    distances,
                    labels,
                    store_pairs,
                    params,
                    stats);
        }
    }

    void range_search(
            faiss::idx_t n,
            const float* x,
            float radius,
            faiss::RangeSearchResult* result,
            const faiss::SearchParameters* params = nullptr) const override {
        mode() == Mode::repeats
                ? Base::range_search(n, x, radius, result, params)
                : MultiAssign::range_search(n, x, radius, result, params);
    }
};

template <class Base>
bool swap_as(faiss::Index*& index) {
    if (typeid(*index) != typeid(Base)) {
        return false;
    }
    auto* swapped = new Swapped<Base>(std::move(static_cast<Base&>(*index)));
    delete index;
    index = swapped;
    return true;
}

/// Swaps an index, or what it wraps.
inline void swap(faiss::Index*& index) {
    if (!index || mode() == Mode::stock) {
        return;
    }
    if (auto* chain = dynamic_cast<faiss::IndexPreTransform*>(index)) {
        swap(chain->index);
        chain->ntotal = chain->index->ntotal;
    } else if (auto* map = dynamic_cast<faiss::IndexIDMap*>(index)) {
        swap(map->index);
        map->ntotal = map->index->ntotal;
    } else if (auto* refine = dynamic_cast<faiss::IndexRefine*>(index)) {
        swap(refine->base_index);
        refine->ntotal = refine->base_index->ntotal;
    } else {
#define FAISS_SUITES_OR_SWAP(type) || swap_as<faiss::type>(index)
        static_cast<void>(
                false FAISS_FLASHGMM_FOR_EACH_CODEC(FAISS_SUITES_OR_SWAP));
#undef FAISS_SUITES_OR_SWAP
    }
}

inline faiss::Index* swapped(faiss::Index* index) {
    swap(index);
    return index;
}

} // namespace faiss_suites
