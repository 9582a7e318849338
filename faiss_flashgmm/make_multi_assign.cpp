#include <faiss_flashgmm/make_multi_assign.h>

#include <typeinfo>
#include <utility>

#include <faiss/IndexIDMap.h>
#include <faiss/IndexPreTransform.h>
#include <faiss/IndexRefine.h>
#include <faiss/IndexReplicas.h>
#include <faiss/IndexShards.h>
#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/IndexIVFMultiAssign.h>
#include <faiss_flashgmm/list_entries.h>
#include <faiss_flashgmm/take_over.h>

namespace faiss_flashgmm {

namespace {

/// An index that wraps one other: the pointer to it, and whether it owns it.
struct Wrapped {
    faiss::Index** index = nullptr;
    bool owned = false;
};

Wrapped wrapped_by(faiss::Index& index) {
    if (auto* pretransform = dynamic_cast<faiss::IndexPreTransform*>(&index)) {
        return {&pretransform->index, pretransform->own_fields};
    }
    if (auto* id_map = dynamic_cast<faiss::IndexIDMap*>(&index)) {
        return {&id_map->index, id_map->own_fields};
    }
    if (auto* refine = dynamic_cast<faiss::IndexRefine*>(&index)) {
        return {&refine->base_index, refine->own_fields};
    }
    return {};
}

/// Calls visit(wrapper) if the index wraps several others.
template <class Visit>
bool visit_collection(faiss::Index& index, const Visit& visit) {
    if (auto* shards = dynamic_cast<faiss::IndexShards*>(&index)) {
        visit(*shards);
        return true;
    }
    if (auto* replicas = dynamic_cast<faiss::IndexReplicas*>(&index)) {
        visit(*replicas);
        return true;
    }
    return false;
}

void check_owned(const faiss::Index& wrapper, bool owned) {
    FAISS_THROW_IF_NOT_FMT(
            owned,
            "a wrapper of type %s does not own its index",
            typeid(wrapper).name());
}

/// Throws what convert() would, changing nothing.
void check_convertible(faiss::Index& index) {
    if (dynamic_cast<const IVFMultiAssign*>(&index)) {
        return;
    }
    if (const Wrapped wrapped = wrapped_by(index); wrapped.index) {
        check_owned(index, wrapped.owned);
        check_convertible(**wrapped.index);
        return;
    }
    const bool is_collection = visit_collection(index, [&](auto& members) {
        check_owned(index, members.FAISS_FLASHGMM_OWN_MEMBERS);
        FAISS_THROW_IF_NOT_MSG(
                members.count() > 0, "shards or replicas without an index");
        for (int i = 0; i < members.count(); i++) {
            check_convertible(*members.at(i));
        }
    });
    if (is_collection) {
        return;
    }
#define FAISS_FLASHGMM_IS(type) || typeid(index) == typeid(faiss::type)
    const bool has_form =
            false FAISS_FLASHGMM_FOR_EACH_CODEC(FAISS_FLASHGMM_IS);
#undef FAISS_FLASHGMM_IS
    FAISS_THROW_IF_NOT_FMT(
            has_form,
            "an index of type %s has no multi-assign form",
            typeid(index).name());
    count_entries(dynamic_cast<const faiss::IndexIVF&>(index));
}

template <class Base>
IVFMultiAssign* take_over_as(faiss::Index*& index, const EntryCounts* known) {
    if (typeid(*index) != typeid(Base)) {
        return nullptr;
    }
    auto* multi = new IndexIVFMultiAssign<Base>(
            std::move(static_cast<Base&>(*index)), known);
    delete index;
    index = multi;
    return multi;
}

/// Replaces `index`, or what it wraps.
void convert(faiss::Index*& index) {
    if (const Wrapped wrapped = wrapped_by(*index); wrapped.index) {
        convert(*wrapped.index);
        index->ntotal = (*wrapped.index)->ntotal;
        return;
    }
    const bool is_collection = visit_collection(*index, [](auto& members) {
        members.FAISS_FLASHGMM_OWN_MEMBERS = false; // while they are taken out
        std::vector<faiss::Index*> parts;
        for (int i = 0; i < members.count(); i++) {
            parts.push_back(members.at(i));
        }
        for (faiss::Index* part : parts) {
            members.removeIndex(part);
        }
        for (faiss::Index* part : parts) {
            convert(part);
            members.addIndex(part);
        }
        members.FAISS_FLASHGMM_OWN_MEMBERS = true;
    });
    if (is_collection) {
        return;
    }
    take_over(index);
}

} // namespace

IVFMultiAssign* take_over(faiss::Index*& index, const EntryCounts* known) {
    IVFMultiAssign* multi = nullptr;
#define FAISS_FLASHGMM_OR_TAKE_OVER(type) \
    || (multi = take_over_as<faiss::type>(index, known))
    return false FAISS_FLASHGMM_FOR_EACH_CODEC(FAISS_FLASHGMM_OR_TAKE_OVER)
            ? multi
            : nullptr;
#undef FAISS_FLASHGMM_OR_TAKE_OVER
}

IVFMultiAssign* make_multi_assign(
        std::unique_ptr<faiss::Index>& index,
        const MultiAssign& assigner,
        const FlashGMMOptions& gmm) {
    assigner.check();
    FAISS_THROW_IF_NOT_MSG(index, "there is no index");
    check_convertible(*index);
    faiss::Index* owned = index.release();
    try {
        convert(owned);
    } catch (...) {
        index.reset(owned);
        throw;
    }
    index.reset(owned);
    const std::vector<IVFMultiAssign*> parts = multi_assign_parts(*index);
    for (IVFMultiAssign* part : parts) {
        part->assigner = assigner;
        part->gmm = gmm;
    }
    return parts.front();
}

std::vector<IVFMultiAssign*> multi_assign_parts(faiss::Index& index) {
    if (auto* multi = dynamic_cast<IVFMultiAssign*>(&index)) {
        return {multi};
    }
    if (const Wrapped wrapped = wrapped_by(index); wrapped.index) {
        return multi_assign_parts(**wrapped.index);
    }
    std::vector<IVFMultiAssign*> parts;
    visit_collection(index, [&](auto& members) {
        for (int i = 0; i < members.count(); i++) {
            for (IVFMultiAssign* part : multi_assign_parts(*members.at(i))) {
                parts.push_back(part);
            }
        }
    });
    return parts;
}

} // namespace faiss_flashgmm
