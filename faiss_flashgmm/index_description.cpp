#include <string>
#include <typeinfo>
#include <vector>

#include <faiss/IndexFlat.h>
#include <faiss/IndexHNSW.h>
#include <faiss/IndexIDMap.h>
#include <faiss/IndexIVFFlat.h>
#include <faiss/IndexIVFPQ.h>
#include <faiss/IndexIVFPQFastScan.h>
#include <faiss/IndexIVFPQR.h>
#include <faiss/IndexNSG.h>
#include <faiss/IndexPQ.h>
#include <faiss/IndexPreTransform.h>
#include <faiss/IndexRefine.h>
#include <faiss/IndexScalarQuantizer.h>
#include <faiss/VectorTransform.h>
#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/IVFMultiAssign.h>
#include <faiss_flashgmm/IndexUniqueIds.h>
#include <faiss_flashgmm/compat.h>
#include <faiss_flashgmm/factory_options.h>
#include <faiss_flashgmm/index_factory.h>

#if FAISS_FLASHGMM_HAS_RABITQ
#include <faiss/IndexIVFRaBitQ.h>
#endif
#if FAISS_FLASHGMM_HAS_RABITQ_FAST_SCAN
#include <faiss/IndexIVFRaBitQFastScan.h>
#endif

namespace faiss_flashgmm {

namespace {

std::string number(int64_t n) {
    return std::to_string(n);
}

[[noreturn]] void no_name_for(const std::type_info& type) {
    FAISS_THROW_FMT("no description builds a %s", type.name());
}

std::string describe_transform(const faiss::VectorTransform& transform) {
    if (auto* pca = dynamic_cast<const faiss::PCAMatrix*>(&transform)) {
        return std::string("PCA") + (pca->eigen_power != 0 ? "W" : "") +
                (pca->random_rotation ? "R" : "") + number(pca->d_out);
    }
    if (auto* opq = dynamic_cast<const faiss::OPQMatrix*>(&transform)) {
        return "OPQ" + number(opq->M) + "_" + number(opq->d_out);
    }
    if (dynamic_cast<const faiss::RandomRotationMatrix*>(&transform)) {
        return "RR" + number(transform.d_out);
    }
    if (dynamic_cast<const faiss::ITQTransform*>(&transform)) {
        return "ITQ" + number(transform.d_out);
    }
    if (dynamic_cast<const faiss::NormalizationTransform*>(&transform)) {
        return "L2norm";
    }
    if (dynamic_cast<const faiss::RemapDimensionsTransform*>(&transform)) {
        return "Pad" + number(transform.d_out);
    }
    no_name_for(typeid(transform));
}

std::string describe_scalar_quantizer(const faiss::ScalarQuantizer& sq) {
    switch (sq.qtype) {
        case faiss::ScalarQuantizer::QT_8bit:
            return "SQ8";
        case faiss::ScalarQuantizer::QT_6bit:
            return "SQ6";
        case faiss::ScalarQuantizer::QT_4bit:
            return "SQ4";
        case faiss::ScalarQuantizer::QT_fp16:
            return "SQfp16";
#if FAISS_FLASHGMM_AT_LEAST(1, 10, 0)
        case faiss::ScalarQuantizer::QT_bf16:
            return "SQbf16";
        case faiss::ScalarQuantizer::QT_8bit_direct:
            return "SQ8_direct";
        case faiss::ScalarQuantizer::QT_8bit_direct_signed:
            return "SQ8_direct_signed";
#endif
        default:
            FAISS_THROW_FMT(
                    "no description builds a scalar quantizer of type %d",
                    int(sq.qtype));
    }
}

std::string describe_pq(const faiss::ProductQuantizer& pq, bool polysemous) {
    return "PQ" + number(pq.M) + "x" + number(pq.nbits) +
            (polysemous ? "" : "np");
}

/// The size of FastScan's blocks, if it is not the default.
std::string blocks_of(int size) {
    return size == 32 ? "" : "_" + number(size);
}

#if FAISS_FLASHGMM_HAS_RABITQ
std::string rabitq_bits([[maybe_unused]] const faiss::RaBitQuantizer& rabitq) {
#if FAISS_FLASHGMM_AT_LEAST(1, 14, 0)
    if (rabitq.nb_bits != 1) {
        return number(rabitq.nb_bits);
    }
#endif
    return "";
}
#endif

/// The part after the coarse quantizer.
std::string describe_codec(const faiss::IndexIVF& ivf) {
    if (auto* pqr = dynamic_cast<const faiss::IndexIVFPQR*>(&ivf)) {
        return "PQ" + number(pqr->pq.M) + "+" + number(pqr->refine_pq.M);
    }
    if (auto* pq = dynamic_cast<const faiss::IndexIVFPQ*>(&ivf)) {
        return describe_pq(pq->pq, pq->do_polysemous_training);
    }
    if (dynamic_cast<const faiss::IndexIVFFlatDedup*>(&ivf)) {
        return "FlatDedup";
    }
    if (dynamic_cast<const faiss::IndexIVFFlat*>(&ivf)) {
        return "Flat";
    }
    if (auto* sq = dynamic_cast<const faiss::IndexIVFScalarQuantizer*>(&ivf)) {
        return describe_scalar_quantizer(sq->sq);
    }
    if (auto* fs = dynamic_cast<const faiss::IndexIVFPQFastScan*>(&ivf)) {
        return "PQ" + number(fs->pq.M) + "x4fs" + (fs->by_residual ? "r" : "") +
                blocks_of(fs->bbs);
    }
#if FAISS_FLASHGMM_HAS_RABITQ
    if (auto* rabitq = dynamic_cast<const faiss::IndexIVFRaBitQ*>(&ivf)) {
        return "RaBitQ" + rabitq_bits(rabitq->rabitq);
    }
#endif
#if FAISS_FLASHGMM_HAS_RABITQ_FAST_SCAN
    if (auto* fs = dynamic_cast<const faiss::IndexIVFRaBitQFastScan*>(&ivf)) {
        return "RaBitQfs" + rabitq_bits(fs->rabitq) + blocks_of(fs->bbs);
    }
#endif
    no_name_for(typeid(ivf));
}

std::string describe_lists(const faiss::IndexIVF& ivf) {
    const std::string lists = "IVF" + number(ivf.nlist);
    const faiss::Index* quantizer = ivf.quantizer;
    FAISS_THROW_IF_NOT_MSG(quantizer, "the index has no quantizer");
    if (dynamic_cast<const faiss::IndexFlat*>(quantizer)) {
        return lists;
    }
    if (auto* hnsw = dynamic_cast<const faiss::IndexHNSWFlat*>(quantizer)) {
        return lists + "_HNSW" + number(hnsw->hnsw.nb_neighbors(1));
    }
    if (auto* nsg = dynamic_cast<const faiss::IndexNSGFlat*>(quantizer)) {
        return lists + "_NSG" + number(nsg->nsg.R);
    }
    auto* imi = dynamic_cast<const faiss::MultiIndexQuantizer*>(quantizer);
    if (imi && imi->pq.M == 2) {
        return "IMI2x" + number(imi->pq.nbits);
    }
    return lists + "(" + index_description(*quantizer) + ")";
}

std::string describe_ivf(const faiss::IndexIVF& ivf) {
    std::string lists = describe_lists(ivf), assign;
    if (auto* multi = dynamic_cast<const IVFMultiAssign*>(&ivf)) {
        if (!multi->kmeans_centroids) {
            lists += "_GMM" + options_of(multi->gmm);
        }
        if (multi->kmeans_centroids ||
            multi->assigner.policy != AssignPolicy::single) {
            assign = ",MA" + options_of(multi->assigner);
        }
    }
    return lists + "," + describe_codec(ivf) + assign;
}

} // namespace

std::string index_description(const faiss::Index& index) {
    if (auto* ivf = dynamic_cast<const faiss::IndexIVF*>(&index)) {
        return describe_ivf(*ivf);
    }
    if (dynamic_cast<const IndexUniqueIds*>(&index)) {
        no_name_for(typeid(index));
    }
    if (auto* chain = dynamic_cast<const faiss::IndexPreTransform*>(&index)) {
        std::string description;
        for (const faiss::VectorTransform* transform : chain->chain) {
            description += describe_transform(*transform) + ",";
        }
        return description + index_description(*chain->index);
    }
    if (auto* map = dynamic_cast<const faiss::IndexIDMap*>(&index)) {
        return (dynamic_cast<const faiss::IndexIDMap2*>(map) ? "IDMap2,"
                                                             : "IDMap,") +
                index_description(*map->index);
    }
    if (auto* refine = dynamic_cast<const faiss::IndexRefine*>(&index)) {
        return index_description(*refine->base_index) +
                (dynamic_cast<const faiss::IndexFlat*>(refine->refine_index)
                         ? ",RFlat"
                         : ",Refine(" +
                                 index_description(*refine->refine_index) +
                                 ")");
    }
    if (auto* hnsw = dynamic_cast<const faiss::IndexHNSWFlat*>(&index)) {
        return "HNSW" + number(hnsw->hnsw.nb_neighbors(1));
    }
    if (auto* pq = dynamic_cast<const faiss::IndexPQ*>(&index)) {
        return describe_pq(pq->pq, pq->do_polysemous_training);
    }
    if (auto* sq = dynamic_cast<const faiss::IndexScalarQuantizer*>(&index)) {
        return describe_scalar_quantizer(sq->sq);
    }
    if (dynamic_cast<const faiss::IndexFlat*>(&index)) {
        return "Flat";
    }
    no_name_for(typeid(index));
}

} // namespace faiss_flashgmm
