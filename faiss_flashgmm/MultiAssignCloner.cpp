#include <faiss_flashgmm/MultiAssignCloner.h>

#include <string>
#include <utility>
#include <vector>

#include <faiss/IndexIVF.h>
#include <faiss/impl/FaissAssert.h>
#include <faiss/impl/io.h>

#include <faiss_flashgmm/IVFMultiAssign.h>
#include <faiss_flashgmm/index_io.h>
#include <faiss_flashgmm/index_tree.h>

namespace faiss_flashgmm {

namespace {

void copy_options(const faiss::Index& from, faiss::Index& to) {
    to.verbose = from.verbose;
    if (auto* from_ivf = dynamic_cast<const faiss::IndexIVF*>(&from)) {
        auto& to_ivf = dynamic_cast<faiss::IndexIVF&>(to);
        to_ivf.cp = from_ivf->cp;
        to_ivf.parallel_mode = from_ivf->parallel_mode;
        to_ivf.max_codes = from_ivf->max_codes;
    }
    if (auto* from_multi = dynamic_cast<const IVFMultiAssign*>(&from)) {
        auto& to_multi = dynamic_cast<IVFMultiAssign&>(to);
        to_multi.gmm = from_multi->gmm;
        to_multi.em_stats = from_multi->em_stats;
    }
}

} // namespace

faiss::Index* MultiAssignCloner::clone_Index(const faiss::Index* index) {
    FAISS_THROW_IF_NOT_MSG(index, "there is no index");
    return clone_index(*index).release();
}

std::unique_ptr<faiss::Index> clone_index(const faiss::Index& index) {
    faiss::VectorIOWriter writer;
    write_index(&index, &writer);
    faiss::VectorIOReader reader;
    reader.data = std::move(writer.data);
    std::unique_ptr<faiss::Index> copy = read_index(&reader);

    // What a file does not keep.
    std::vector<const faiss::Index*> parts;
    for_each_part(index, [&](const std::string&, const faiss::Index& part) {
        parts.push_back(&part);
    });
    size_t i = 0;
    faiss::Index* root = copy.get();
    for_each_part(root, [&](const std::string&, faiss::Index*& part) {
        copy_options(*parts.at(i++), *part);
    });
    return copy;
}

} // namespace faiss_flashgmm
