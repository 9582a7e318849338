#include <faiss_flashgmm/stock_index.h>

#include <algorithm>
#include <compare>
#include <string>
#include <utility>
#include <vector>

#include <faiss/IndexIVF.h>
#include <faiss/impl/FaissAssert.h>
#include <faiss/impl/io.h>
#include <faiss/invlists/BlockInvertedLists.h>

#include <faiss_flashgmm/IVFMultiAssign.h>
#include <faiss_flashgmm/MultiAssignCloner.h>
#include <faiss_flashgmm/index_container.h>
#include <faiss_flashgmm/index_tree.h>
#include <faiss_flashgmm/list_codes.h>
#include <faiss_flashgmm/make_multi_assign.h>
#include <faiss_flashgmm/train_ivf.h>

namespace faiss_flashgmm {

namespace {

/// Whether to keep each entry, per list.
using KeptEntries = std::vector<std::vector<bool>>;

/// One entry of an id.
struct Place {
    idx_t id;
    size_t list, offset;

    auto operator<=>(const Place&) const = default;
};

/// The entry that is in the list nearest to the mean of the decoded copies:
/// their errors are different, the vector is the same.
const Place& primary_of(
        const faiss::IndexIVF& ivf,
        const std::vector<Place>& entries,
        size_t begin,
        size_t end) {
    std::vector<float> decoded(ivf.d), centroid(ivf.d);
    std::vector<double> mean(ivf.d);
    for (size_t e = begin; e < end; e++) {
        ivf.reconstruct_from_offset(
                entries[e].list, entries[e].offset, decoded.data());
        for (int j = 0; j < ivf.d; j++) {
            mean[j] += double(decoded[j]) / double(end - begin);
        }
    }
    size_t best = begin;
    double best_fit = 0;
    for (size_t e = begin; e < end; e++) {
        ivf.quantizer->reconstruct(entries[e].list, centroid.data());
        double fit = 0;
        for (int j = 0; j < ivf.d; j++) {
            const double difference = mean[j] - centroid[j];
            fit += ivf.metric_type == faiss::METRIC_INNER_PRODUCT
                    ? mean[j] * centroid[j]
                    : -difference * difference;
        }
        if (e == begin || fit > best_fit) {
            best = e;
            best_fit = fit;
        }
    }
    return entries[best];
}

KeptEntries primary_entries(const faiss::IndexIVF& ivf) {
    KeptEntries kept(ivf.nlist);
    std::vector<Place> entries;
    for (size_t list = 0; list < ivf.nlist; list++) {
        const size_t size = ivf.invlists->list_size(list);
        kept[list].resize(size, true);
        faiss::InvertedLists::ScopedIds ids(ivf.invlists, list);
        for (size_t j = 0; j < size; j++) {
            entries.push_back({ids[j], list, j});
        }
    }
    std::sort(entries.begin(), entries.end());
    for (size_t begin = 0, end; begin < entries.size(); begin = end) {
        for (end = begin + 1;
             end < entries.size() && entries[end].id == entries[begin].id;) {
            end++;
        }
        if (end - begin == 1) {
            continue;
        }
        for (size_t e = begin; e < end; e++) {
            kept[entries[e].list][entries[e].offset] = false;
        }
        const Place& primary = primary_of(ivf, entries, begin, end);
        kept[primary.list][primary.offset] = true;
    }
    return kept;
}

/// In new lists: those of the index may be on disk, where others see them.
void keep_in_arrays(faiss::IndexIVF& ivf, const KeptEntries& kept) {
    auto lists = std::make_unique<faiss::ArrayInvertedLists>(
            ivf.nlist, ivf.code_size);
    for (size_t list = 0; list < ivf.nlist; list++) {
        faiss::InvertedLists::ScopedIds ids(ivf.invlists, list);
        faiss::InvertedLists::ScopedCodes codes(ivf.invlists, list);
        for (size_t j = 0; j < kept[list].size(); j++) {
            if (kept[list][j]) {
                lists->add_entry(list, ids[j], codes.get() + j * ivf.code_size);
            }
        }
    }
    ivf.replace_invlists(lists.get(), true);
    lists.release();
}

/// In blocks, of which FAISS reads a copy into memory.
void keep_in_blocks(faiss::IndexIVF& ivf, const KeptEntries& kept) {
    ListCodes codes(ivf);
    std::vector<uint8_t> code(codes.code_size());
    for (size_t list = 0; list < ivf.nlist; list++) {
        size_t n_kept = 0;
        for (size_t j = 0; j < kept[list].size(); j++) {
            if (kept[list][j]) {
                codes.read(list, j, code.data());
                codes.write(
                        list,
                        n_kept++,
                        ivf.invlists->get_single_id(list, j),
                        code.data());
            }
        }
        codes.shrink(list, n_kept);
    }
}

void keep_entries(faiss::IndexIVF& ivf, const KeptEntries& kept) {
    const faiss::DirectMap::Type map_type = ivf.direct_map.type;
    ivf.direct_map.clear();
    if (map_type != faiss::DirectMap::NoMap) {
        ivf.direct_map.set_type(
                faiss::DirectMap::NoMap, ivf.invlists, ivf.ntotal);
    }
    if (dynamic_cast<const faiss::BlockInvertedLists*>(ivf.invlists)) {
        keep_in_blocks(ivf, kept);
    } else {
        keep_in_arrays(ivf, kept);
    }
    ivf.direct_map.set_type(map_type, ivf.invlists, ivf.ntotal);
}

/// All parts of an index, in one order for all copies of it.
std::vector<faiss::Index*> parts_of(faiss::Index* index) {
    std::vector<faiss::Index*> parts;
    for_each_part(index, [&](const std::string&, faiss::Index*& part) {
        parts.push_back(part);
    });
    return parts;
}

} // namespace

std::unique_ptr<faiss::Index> to_stock(
        const faiss::Index& index,
        StockCopies copies) {
    faiss::VectorIOWriter writer;
    write_container(index, writer);
    faiss::VectorIOReader reader;
    reader.data = std::move(writer.data);
    std::unique_ptr<faiss::Index> stock = read_container(reader, 0, true);

    const auto parts = parts_of(const_cast<faiss::Index*>(&index)); // read only
    const auto stock_parts = parts_of(stock.get());
    FAISS_THROW_IF_NOT(parts.size() == stock_parts.size());
    for (size_t i = 0; i < parts.size(); i++) {
        if (dynamic_cast<const IndexFlatGMM*>(parts[i])) {
            stock_parts[i]->is_trained = true; // an IndexFlat needs no training
        }
        auto* multi = dynamic_cast<const IVFMultiAssign*>(parts[i]);
        if (multi && copies == StockCopies::single &&
            multi->counts().copies > 0) {
            keep_entries(
                    dynamic_cast<faiss::IndexIVF&>(*stock_parts[i]),
                    primary_entries(dynamic_cast<faiss::IndexIVF&>(*parts[i])));
        }
    }
    return stock;
}

std::unique_ptr<faiss::Index> from_stock(
        const faiss::Index& index,
        const MultiAssign& assigner,
        const FlashGMMOptions& gmm) {
    std::unique_ptr<faiss::Index> copy = clone_index(index);
    make_multi_assign(copy, assigner, gmm);
    return copy;
}

} // namespace faiss_flashgmm
