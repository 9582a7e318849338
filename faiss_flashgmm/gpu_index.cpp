#include <faiss_flashgmm/gpu_index.h>

#include <algorithm>
#include <typeinfo>

#include <faiss/gpu/GpuCloner.h>
#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/index_tree.h>
#include <faiss_flashgmm/make_multi_assign.h>
#include <faiss_flashgmm/stock_index.h>

namespace faiss_flashgmm {

namespace {

/// The most entries of one id in the multi-assign parts; 0: there are none.
int most_copies(const faiss::Index& index) {
    int most = 0;
    for_each_part(index, [&](const std::string&, const faiss::Index& part) {
        if (auto* multi = dynamic_cast<const IVFMultiAssign*>(&part)) {
            most = std::max(most, multi->counts().max_copies);
        }
    });
    return most;
}

} // namespace

std::unique_ptr<IndexUniqueIds> index_cpu_to_gpu(
        faiss::gpu::GpuResourcesProvider* provider,
        int device,
        const faiss::Index& index,
        const faiss::gpu::GpuClonerOptions* options) {
    FAISS_THROW_IF_NOT_MSG(provider, "there is no provider of GPU resources");
    FAISS_THROW_IF_NOT_MSG(
            !options || !options->use_cuvs,
            "cuVS is asked for: past 256 results it gives them in no order, "
            "and it does not mark those that are missing");
    FAISS_THROW_IF_NOT_MSG(
            !options || options->indicesOptions != faiss::gpu::INDICES_IVF,
            "indicesOptions is INDICES_IVF: copies of a vector are known by "
            "their ids, which it does not keep");
    const int max_copies = most_copies(index);
    FAISS_THROW_IF_NOT_FMT(
            max_copies > 0,
            "an index of type %s has no multi-assign part",
            typeid(index).name());
    const auto stock = to_stock(index, StockCopies::all);
    faiss::gpu::GpuClonerOptions plain;
    plain.use_cuvs = false; // the default where FAISS has cuVS is to use it
    std::unique_ptr<faiss::Index> copy(faiss::gpu::index_cpu_to_gpu(
            provider, device, stock.get(), options ? options : &plain));
    auto unique = std::make_unique<IndexUniqueIds>(copy.get(), max_copies);
    copy.release();
    unique->own_fields = true;
    return unique;
}

std::unique_ptr<faiss::Index> index_gpu_to_cpu(
        const faiss::Index& gpu_index,
        const MultiAssign& assigner,
        const FlashGMMOptions& gmm) {
    const auto* unique = dynamic_cast<const IndexUniqueIds*>(&gpu_index);
    const bool is_bare = unique && unique->chain.empty();
    std::unique_ptr<faiss::Index> copy(
            faiss::gpu::index_gpu_to_cpu(is_bare ? unique->index : &gpu_index));
    make_multi_assign(copy, assigner, gmm);
    return copy;
}

} // namespace faiss_flashgmm
