#include <faiss_flashgmm/index_tree.h>

#include <typeinfo>

#include <faiss/IndexIDMap.h>
#include <faiss/IndexPreTransform.h>
#include <faiss/IndexRefine.h>
#include <faiss/IndexReplicas.h>
#include <faiss/IndexShards.h>
#include <faiss/impl/FaissAssert.h>

namespace faiss_flashgmm {

namespace {

using Visit = std::function<void(const std::string&, faiss::Index*&)>;

void visit_parts(
        const std::string& path,
        faiss::Index*& index,
        const Visit& visit) {
    if (!index) {
        return;
    }
    visit(path, index);
    const auto enter = [&](const std::string& name, faiss::Index*& part) {
        visit_parts(path + "/" + name, part, visit);
    };
    if (auto* ivf = dynamic_cast<faiss::IndexIVF*>(index)) {
        enter("quantizer", ivf->quantizer);
    } else if (auto* chain = dynamic_cast<faiss::IndexPreTransform*>(index)) {
        enter("index", chain->index);
    } else if (auto* map = dynamic_cast<faiss::IndexIDMap*>(index)) {
        enter("index", map->index);
    } else if (auto* refine = dynamic_cast<faiss::IndexRefine*>(index)) {
        enter("base_index", refine->base_index);
        enter("refine_index", refine->refine_index);
    } else if (
            auto* threaded =
                    dynamic_cast<faiss::ThreadedIndex<faiss::Index>*>(index)) {
        for (int i = 0; i < threaded->count(); i++) {
            faiss::Index* part = threaded->at(i);
            enter(std::to_string(i), part);
        }
    }
}

/// The first part that is a T; null: none.
template <class T>
T* find_part(faiss::Index* index) {
    T* found = nullptr;
    visit_parts("", index, [&](const std::string&, faiss::Index*& part) {
        found = found ? found : dynamic_cast<T*>(part);
    });
    return found;
}

} // namespace

void for_each_part(faiss::Index*& index, const Visit& visit) {
    visit_parts("", index, visit);
}

void for_each_part(
        const faiss::Index& index,
        const std::function<void(const std::string&, const faiss::Index&)>&
                visit) {
    auto* part = const_cast<faiss::Index*>(&index); // given back as const
    visit_parts("", part, [&](const std::string& path, faiss::Index*& inner) {
        visit(path, *inner);
    });
}

IVFMultiAssign* find_multi_assign(faiss::Index& index) {
    return find_part<IVFMultiAssign>(&index);
}

const IVFMultiAssign* find_multi_assign(const faiss::Index& index) {
    return find_part<IVFMultiAssign>(const_cast<faiss::Index*>(&index));
}

faiss::IndexIVF* try_extract_index_ivf(faiss::Index* index) {
    return find_part<faiss::IndexIVF>(index);
}

faiss::IndexIVF* extract_index_ivf(faiss::Index* index) {
    faiss::IndexIVF* ivf = try_extract_index_ivf(index);
    FAISS_THROW_IF_NOT_FMT(
            ivf,
            "there is no IVF index in the index of type %s",
            index ? typeid(*index).name() : "null");
    return ivf;
}

const faiss::IndexIVF* extract_index_ivf(const faiss::Index* index) {
    return extract_index_ivf(const_cast<faiss::Index*>(index));
}

} // namespace faiss_flashgmm
