#include <faiss_flashgmm/AutoTune.h>

#include <type_traits>

#include <faiss/IndexIDMap.h>
#include <faiss/IndexReplicas.h>
#include <faiss/IndexShards.h>
#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/IVFMultiAssign.h>
#include <faiss_flashgmm/IndexUniqueIds.h>
#include <faiss_flashgmm/factory_options.h>
#include <faiss_flashgmm/index_tree.h>

namespace faiss_flashgmm {

namespace {

constexpr char kAssignPrefix[] = "assign_";

bool set_assign_field(
        MultiAssign& assigner,
        const std::string& name,
        double value) {
    MultiAssign changed = assigner;
    bool done = false;
    visit_fields(changed, [&](const char* field_name, auto& field) {
        using Field = std::remove_cvref_t<decltype(field)>;
        if constexpr (std::is_arithmetic_v<Field>) {
            if (name == std::string(kAssignPrefix) + field_name) {
                field = Field(value);
                done = true;
            }
        }
    });
    changed.check();
    assigner = changed;
    return done;
}

} // namespace

void ParameterSpace::initialize(const faiss::Index* index) {
    // FAISS looks through IndexPreTransform and IndexRefine itself.
    if (auto* map = dynamic_cast<const faiss::IndexIDMap*>(index)) {
        initialize(map->index);
        return;
    }
    auto* threaded =
            dynamic_cast<const faiss::ThreadedIndex<faiss::Index>*>(index);
    if (threaded && threaded->count() > 0) {
        initialize(threaded->at(0));
        return;
    }
    faiss::ParameterSpace::initialize(index);
}

void ParameterSpace::set_index_parameter(
        faiss::Index* index,
        const std::string& name,
        double value) const {
    bool is_own = name.starts_with(kAssignPrefix) || name == "max_copies";
    if (!is_own) {
        faiss::ParameterSpace::set_index_parameter(index, name, value);
        return;
    }
    bool done = false;
    for_each_part(index, [&](const std::string&, faiss::Index*& part) {
        if (auto* multi = dynamic_cast<IVFMultiAssign*>(part)) {
            done |= set_assign_field(multi->assigner, name, value);
        } else if (auto* unique = dynamic_cast<IndexUniqueIds*>(part)) {
            if (name == "max_copies" && value >= 1) {
                unique->max_copies = int(value);
                done = true;
            }
        }
    });
    FAISS_THROW_IF_NOT_FMT(
            done, "no part of the index takes %s = %g", name.c_str(), value);
}

} // namespace faiss_flashgmm
