#include <faiss_flashgmm/index_sections.h>

#include <typeinfo>
#include <utility>

#include <faiss/IndexFlat.h>
#include <faiss/IndexIVF.h>
#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/IVFMultiAssign.h>
#include <faiss_flashgmm/IndexUniqueIds.h>
#include <faiss_flashgmm/fields.h>
#include <faiss_flashgmm/index_tree.h>
#include <faiss_flashgmm/ivf_training.h>
#include <faiss_flashgmm/take_over.h>
#include <faiss_flashgmm/train_ivf.h>
#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

namespace {

constexpr char kMultiAssign[] = "IndexIVFMultiAssign";
constexpr char kUniqueIds[] = "IndexUniqueIds";
constexpr char kFlatGMM[] = "IndexFlatGMM";

/*************************************************************************
 * IndexIVFMultiAssign
 *************************************************************************/

void put_mixture(const Mixture& mixture, Record& record) {
    if (mixture.k > 0) {
        put_fields(mixture, "mixture", record);
    }
}

Mixture get_mixture(const Record& record) {
    Mixture mixture;
    get_fields(mixture, "mixture", record);
    if (mixture.k != 0) {
        try {
            mixture.check();
        } catch (const Error& error) {
            FAISS_THROW_MSG(error.what());
        }
    }
    return mixture;
}

Record record_of(const IVFMultiAssign& multi, const faiss::IndexIVF& ivf) {
    Record record;
    put_fields(multi.assigner, "assign", record);
    put_fields(multi.assigner.learned, "learned", record);
    put_fields(multi.gmm, "gmm", record);
    record.set("kmeans_centroids", int64_t(multi.kmeans_centroids));
    put_fields<faiss::ClusteringParameters>(ivf.cp, "cp", record);
    put_fields(multi.counts(), "counts", record);
    record.set("quantizer_trains_alone", int64_t(ivf.quantizer_trains_alone));
    if (multi.mixture().k > 0) {
        check_mixture(ivf, multi.mixture());
        put_mixture(multi.mixture(), record);
    }
    return record;
}

/// The counts agree with each other and with the lists.
void check_counts(const EntryCounts& counts, const faiss::IndexIVF& ivf) {
    FAISS_THROW_IF_NOT_FMT(
            counts.vectors == size_t(ivf.ntotal),
            "%zu vectors are counted in an index of %ld",
            counts.vectors,
            long(ivf.ntotal));
    FAISS_THROW_IF_NOT_FMT(
            counts.max_copies >= (counts.copies > 0 ? 2 : 1) &&
                    counts.max_copies <= 8 && counts.largest_id >= -1,
            "%zu copies, %d of one vector, up to id %ld are counted",
            counts.copies,
            counts.max_copies,
            long(counts.largest_id));
    if (ivf.invlists) {
        const size_t entries = ivf.invlists->compute_ntotal();
        // Some vectors may be in no list.
        FAISS_THROW_IF_NOT_FMT(
                counts.copies <= entries &&
                        entries - counts.copies <= counts.vectors,
                "%zu vectors and %zu copies are counted in lists of %zu "
                "entries",
                counts.vectors,
                counts.copies,
                entries);
    }
}

void restore_multi_assign(const Record& record, faiss::Index*& part) {
    auto* stock = dynamic_cast<faiss::IndexIVF*>(part);
    FAISS_THROW_IF_NOT_FMT(stock, "%s is no IVF index", typeid(*part).name());
    EntryCounts counts;
    get_fields(counts, "counts", record);
    check_counts(counts, *stock);
    MultiAssign assigner;
    get_fields(assigner, "assign", record);
    get_fields(assigner.learned, "learned", record);
    assigner.check();
    const Demand& demand = assigner.learned.demand;
    if (!demand.empty() && !record.has("learned.demand_votes")) {
        assigner.learned = {}; // of an older rule
    }
    if (!demand.empty()) {
        FAISS_THROW_IF_NOT_MSG(
                stock->quantizer, "a demand without a quantizer");
        demand.check(*stock->quantizer, assigner.demand_parameters);
    }
    FlashGMMOptions gmm;
    get_fields(gmm, "gmm", record);
    const Mixture mixture = get_mixture(record);

    IVFMultiAssign* multi = take_over(part, &counts);
    FAISS_THROW_IF_NOT_FMT(
            multi,
            "there is no multi-assign type for %s",
            typeid(*part).name());
    multi->assigner = assigner;
    multi->gmm = gmm;
    int64_t kmeans_centroids = 0;
    record.get("kmeans_centroids", kmeans_centroids);
    multi->kmeans_centroids = kmeans_centroids;
    auto& ivf = dynamic_cast<faiss::IndexIVF&>(*part);
    get_fields<faiss::ClusteringParameters>(ivf.cp, "cp", record);
    int64_t trains_alone = 0;
    record.get("quantizer_trains_alone", trains_alone);
    ivf.quantizer_trains_alone = char(trains_alone);
    if (mixture.k > 0) {
        multi->set_mixture(mixture);
    }
}

/*************************************************************************
 * IndexUniqueIds
 *************************************************************************/

Record record_of(const IndexUniqueIds& unique) {
    Record record;
    record.set("max_copies", int64_t(unique.max_copies));
    return record;
}

void restore_unique_ids(const Record& record, faiss::Index*& part) {
    FAISS_THROW_IF_NOT_FMT(
            typeid(*part) == typeid(faiss::IndexPreTransform),
            "%s is no IndexPreTransform",
            typeid(*part).name());
    auto& stock = static_cast<faiss::IndexPreTransform&>(*part);
    int64_t max_copies = 2;
    record.get("max_copies", max_copies);
    auto unique =
            std::make_unique<IndexUniqueIds>(stock.index, int(max_copies));
    unique->d = stock.d;
    unique->ntotal = stock.ntotal;
    unique->is_trained = stock.is_trained;
    unique->metric_type = stock.metric_type;
    unique->metric_arg = stock.metric_arg;
    unique->chain = stock.chain;
    unique->own_fields = std::exchange(stock.own_fields, false);
    delete part;
    part = unique.release();
}

/*************************************************************************
 * IndexFlatGMM
 *************************************************************************/

Record record_of(const IndexFlatGMM& flat) {
    const FlashGMMClustering& clustering = flat.clustering;
    Record record;
    record.set("nlist", int64_t(clustering.k));
    record.set("is_trained", int64_t(flat.is_trained));
    put_fields(clustering.gmm, "gmm", record);
    put_fields<faiss::ClusteringParameters>(clustering, "cp", record);
    put_mixture(clustering.mixture, record);
    return record;
}

void restore_flat_gmm(const Record& record, faiss::Index*& part) {
    auto* stock = dynamic_cast<faiss::IndexFlat*>(part);
    FAISS_THROW_IF_NOT_FMT(stock, "%s is no IndexFlat", typeid(*part).name());
    int64_t nlist = 0, is_trained = 0;
    record.get("nlist", nlist);
    record.get("is_trained", is_trained);
    FAISS_THROW_IF_NOT_FMT(
            nlist > 0 && nlist <= INT32_MAX, "nlist is %ld", long(nlist));
    auto flat =
            std::make_unique<IndexFlatGMM>(stock->d, nlist, stock->metric_type);
    FlashGMMClustering& clustering = flat->clustering;
    get_fields(clustering.gmm, "gmm", record);
    get_fields<faiss::ClusteringParameters>(clustering, "cp", record);
    clustering.mixture = get_mixture(record);
    clustering.centroids = clustering.mixture.means;
    flat->codes = std::move(stock->codes);
    flat->ntotal = stock->ntotal;
    flat->is_trained = is_trained;
    delete part;
    part = flat.release();
}

void restore(const Section& section, faiss::Index*& part) {
    if (section.kind == kMultiAssign) {
        restore_multi_assign(section.record, part);
    } else if (section.kind == kUniqueIds) {
        restore_unique_ids(section.record, part);
    } else if (section.kind == kFlatGMM) {
        restore_flat_gmm(section.record, part);
    } else {
        FAISS_THROW_FMT(
                "this version does not know a '%s'", section.kind.c_str());
    }
}

} // namespace

std::vector<Section> sections_of(const faiss::Index& index) {
    std::vector<Section> sections;
    for_each_part(index, [&](const std::string& path, const faiss::Index& in) {
        if (auto* multi = dynamic_cast<const IVFMultiAssign*>(&in)) {
            auto& ivf = dynamic_cast<const faiss::IndexIVF&>(in);
            sections.push_back({kMultiAssign, path, record_of(*multi, ivf)});
        } else if (auto* unique = dynamic_cast<const IndexUniqueIds*>(&in)) {
            sections.push_back({kUniqueIds, path, record_of(*unique)});
        } else if (auto* flat = dynamic_cast<const IndexFlatGMM*>(&in)) {
            sections.push_back({kFlatGMM, path, record_of(*flat)});
        }
    });
    return sections;
}

void restore_sections(
        std::unique_ptr<faiss::Index>& index,
        const std::vector<Section>& sections) {
    size_t n_restored = 0;
    faiss::Index* root = index.release();
    try {
        for_each_part(root, [&](const std::string& path, faiss::Index*& part) {
            for (const Section& section : sections) {
                if (section.path == path) {
                    restore(section, part);
                    n_restored++;
                }
            }
        });
    } catch (...) {
        index.reset(root);
        throw;
    }
    index.reset(root);
    for_each_part(root, [](const std::string&, faiss::Index*& part) {
        auto* ivf = dynamic_cast<faiss::IndexIVF*>(part);
        if (ivf && dynamic_cast<IndexFlatGMM*>(ivf->quantizer)) {
            ivf->quantizer_trains_alone = 1; // FAISS does not store it
        }
    });
    FAISS_THROW_IF_NOT_FMT(
            n_restored == sections.size(),
            "%zu of the %zu parts described are in the index",
            n_restored,
            sections.size());
}

} // namespace faiss_flashgmm
