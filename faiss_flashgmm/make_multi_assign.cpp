#include <faiss_flashgmm/make_multi_assign.h>

#include <typeinfo>
#include <utility>

#include <faiss/IndexIDMap.h>
#include <faiss/IndexPreTransform.h>
#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/IndexIVFMultiAssign.h>
#include <faiss_flashgmm/take_over.h>

namespace faiss_flashgmm {

namespace {

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

template <class... Bases>
IVFMultiAssign* take_over_any(faiss::Index*& index, const EntryCounts* known) {
    IVFMultiAssign* multi = nullptr;
    ((multi = take_over_as<Bases>(index, known)) || ...);
    return multi;
}

IVFMultiAssign* convert(faiss::Index*& index);

template <class Wrapper>
IVFMultiAssign* convert_wrapped(Wrapper& wrapper) {
    FAISS_THROW_IF_NOT_FMT(
            wrapper.own_fields,
            "a wrapper of type %s does not own its index",
            typeid(wrapper).name());
    IVFMultiAssign* multi = convert(wrapper.index);
    wrapper.ntotal = wrapper.index->ntotal;
    return multi;
}

/// Replaces `index`, or the index that it wraps. Changes nothing if it throws.
IVFMultiAssign* convert(faiss::Index*& index) {
    if (auto* multi = dynamic_cast<IVFMultiAssign*>(index)) {
        return multi;
    }
    if (auto* multi = take_over(index)) {
        return multi;
    }
    if (auto* wrapper = dynamic_cast<faiss::IndexPreTransform*>(index)) {
        return convert_wrapped(*wrapper);
    }
    if (auto* wrapper = dynamic_cast<faiss::IndexIDMap*>(index)) {
        return convert_wrapped(*wrapper);
    }
    FAISS_THROW_FMT(
            "an index of type %s is not an IndexIVFFlat or IndexIVFPQ",
            typeid(*index).name());
}

} // namespace

IVFMultiAssign* take_over(faiss::Index*& index, const EntryCounts* known) {
    return take_over_any<faiss::IndexIVFFlat, faiss::IndexIVFPQ>(index, known);
}

IVFMultiAssign* make_multi_assign(
        std::unique_ptr<faiss::Index>& index,
        const MultiAssign& assigner,
        const FlashGMMOptions& gmm) {
    assigner.check();
    FAISS_THROW_IF_NOT_MSG(index, "there is no index");
    faiss::Index* owned = index.release();
    IVFMultiAssign* multi = nullptr;
    try {
        multi = convert(owned);
    } catch (...) {
        index.reset(owned);
        throw;
    }
    index.reset(owned);
    multi->assigner = assigner;
    multi->gmm = gmm;
    return multi;
}

} // namespace faiss_flashgmm
