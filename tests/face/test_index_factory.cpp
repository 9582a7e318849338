#include <faiss_flashgmm/index_factory.h>

#include <numeric>
#include <string>

#include <gtest/gtest.h>

#include <faiss/IndexHNSW.h>
#include <faiss/IndexIDMap.h>
#include <faiss/IndexPreTransform.h>
#include <faiss/IndexRefine.h>
#include <faiss/VectorTransform.h>
#include <faiss/index_factory.h>

#include <faiss_flashgmm/IndexUniqueIds.h>
#include <faiss_flashgmm/MultiAssignCloner.h>
#include <faiss_flashgmm/index_tree.h>

#include "face/multi_assign_cases.h"

namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;

std::unique_ptr<faiss::Index> build(const std::string& description) {
    return faiss_flashgmm::index_factory(kDim, description.c_str());
}

const IVFMultiAssign& multi_of(const faiss::Index& index) {
    const IVFMultiAssign* multi = find_multi_assign(index);
    EXPECT_NE(multi, nullptr);
    return *multi;
}

TEST(IndexFactory, PartsSayPolicyAndMixture) {
    auto index =
            build("IVF32_GMM(per_component,free,tol=0.5),Flat,"
                  "MA(nearest,distance_ratio=1.25)");
    const IVFMultiAssign& multi = multi_of(*index);
    EXPECT_EQ(multi.assigner.policy, AssignPolicy::nearest);
    EXPECT_EQ(multi.assigner.distance_ratio, 1.25);
    EXPECT_EQ(multi.gmm.variance, VarianceModel::per_component);
    EXPECT_EQ(multi.gmm.weights, WeightModel::free);
    EXPECT_EQ(multi.gmm.tol, 0.5);
    EXPECT_FALSE(multi.kmeans_centroids);

    EXPECT_EQ(
            multi_of(*build("IVF32_GMM,Flat")).assigner.policy,
            AssignPolicy::single);
    EXPECT_EQ(
            multi_of(*build("IVF32,Flat,MA")).assigner.policy,
            MultiAssign().policy);
    EXPECT_TRUE(multi_of(*build("IVF32,Flat,MA")).kmeans_centroids);
    EXPECT_EQ(multi_of(*build("IVF32,Flat,MA(tau=0.25)")).assigner.tau, 0.25);
    index = build("IVF32,Flat,MA(soar,1.5,4)");
    EXPECT_EQ(multi_of(*index).assigner.policy, AssignPolicy::soar);
    EXPECT_EQ(multi_of(*index).assigner.max_inflation, 1.5);
    EXPECT_EQ(multi_of(*index).assigner.max_entries, 4);
    // wherever the part stands
    EXPECT_EQ(
            multi_of(*build("PCA8,IVF32_GMM,Flat,RFlat,MA(nearest)"))
                    .assigner.policy,
            AssignPolicy::nearest);
}

TEST(IndexFactory, WithoutThemItIsThatOfFaiss) {
    for (const char* description :
         {"Flat", "IVF32,Flat", "PCA8,IVF32,SQ8", "IVF32_HNSW8,PQ4x4np"}) {
        std::unique_ptr<faiss::Index> expected(
                faiss::index_factory(kDim, description));
        auto index = build(description);
        EXPECT_EQ(typeid(*index), typeid(*expected));
        EXPECT_EQ(find_multi_assign(*index), nullptr);
        EXPECT_EQ(index_description(*index), description);
    }
}

TEST(IndexFactory, DescriptionsComeBack) {
    for (const char* description : {
             "IVF32_GMM,Flat", "IVF32_GMM,Flat,MA(nearest)", "IVF32,Flat,MA",
                     "IVF32,PQ4x4,MA(single)",
                     "IVF32_GMM(per_component,free),PQ4x6np,MA(tau=0.125)",
                     "IVF32_HNSW16_GMM,Flat,MA(nearest,distance_ratio=1.1)",
                     "IVF32(IVF4_GMM,Flat,MA(nearest))_GMM,Flat",
                     "PCAWR8,IVF32_GMM,Flat,MA",
                     "OPQ4_8,IVF32_GMM,PQ4x8,MA(nearest)",
                     "L2norm,IVF32_GMM,Flat,MA", "IDMap2,IVF32_GMM,Flat,MA",
                     "IDMap,IVF32,Flat,MA(nearest)",
                     "IVF32_GMM,PQ4x8,MA(nearest),RFlat",
                     "IVF32_GMM,PQ4x4fs,MA(nearest)",
                     "IVF32_GMM,PQ4x4fs,MA(soar,1.5),RFlat",
                     "IVF32,Flat,MA(air,1.25,air_relaxed=1)",
                     "IVF32_GMM,Flat,MA(demand,1.5,demand_spread=0.25)",
                     "IVF32_GMM,PQ4x4fsr_64,MA", "IVF32,SQ6,MA(nearest)",
#if FAISS_FLASHGMM_HAS_RABITQ
                     "IVF32_GMM,RaBitQ,MA",
#endif
#if FAISS_FLASHGMM_HAS_RABITQ_FAST_SCAN
                     "IVF32_GMM,RaBitQfs,MA", "IVF32_GMM,RaBitQfs4_64,MA",
#endif
                     "IVF32_GMM,PQ4x8,MA,Refine(SQ8)"
         }) {
        SCOPED_TRACE(description);
        if (std::string(description).find("IVF32(") == 0) {
            // parentheses are read by FAISS, which knows no mixture
            EXPECT_NE(message_of([&] { build(description); }), "");
            continue;
        }
        EXPECT_EQ(index_description(*build(description)), description);
    }
    // equal, in other words
    const std::pair<const char*, const char*> equal[] = {
            {"IVF32_GMM(tied,uniform),Flat,MA()", "IVF32_GMM,Flat,MA"},
            {"IVF32_GMM,Flat,MA(posterior)", "IVF32_GMM,Flat,MA"},
            {"IVF32_GMM,MA(nearest),Flat", "IVF32_GMM,Flat,MA(nearest)"},
            {"IVF32_GMM,Flat,MA(single)", "IVF32_GMM,Flat"},
            {"IVF32_GMM,Flat,RFlat,MA(nearest)",
             "IVF32_GMM,Flat,MA(nearest),RFlat"},
            {"IVF32_GMM,PQ4,IDMap,MA", "IDMap,IVF32_GMM,PQ4x8,MA"},
            {"IVF32(Flat)_GMM,Flat", "IVF32_GMM,Flat"},
            {"IVF32_GMM,Flat,MA(soar,1.5,2)", "IVF32_GMM,Flat,MA(soar,1.5)"},
    };
    for (const auto& [description, canonical] : equal) {
        EXPECT_EQ(index_description(*build(description)), canonical);
    }
}

TEST(IndexFactory, FilledIndexesKeepTheirDescription) {
    const std::string description = "IVF32_GMM,Flat,MA(nearest),RFlat";
    auto index = build(description);
    index->train(kRows, base_rows().data());
    index->add(kRows, base_rows().data());
    EXPECT_EQ(index->ntotal, kRows);
    EXPECT_EQ(multi_of(*index).nentries(), size_t(2 * kRows));
    auto copy = clone_index(*index);
    EXPECT_EQ(index_description(*copy), description);
    EXPECT_EQ(
            search(*copy, query_rows(), 10), search(*index, query_rows(), 10));
    expect_well_formed(search(*index, query_rows(), 10), faiss::METRIC_L2);
}

TEST(IndexFactory, WithoutMixtureTheCentroidsAreThoseOfKMeans) {
    std::unique_ptr<faiss::Index> stock(
            faiss::index_factory(kDim, "IVF32,Flat"));
    auto index = build("IVF32,Flat,MA");
    auto mixture = build("IVF32_GMM,Flat,MA");
    for (faiss::Index* each : {stock.get(), index.get(), mixture.get()}) {
        extract_index_ivf(each)->cp.min_points_per_centroid = 1;
        each->train(kRows, base_rows().data());
    }
    const auto centroids = [](const faiss::Index& of) {
        std::vector<float> rows(kLists * kDim);
        extract_index_ivf(&of)->quantizer->reconstruct_n(
                0, kLists, rows.data());
        return rows;
    };
    EXPECT_EQ(centroids(*index), centroids(*stock));
    EXPECT_NE(centroids(*mixture), centroids(*stock));
    // and the policy has its mixture around them
    EXPECT_EQ(multi_of(*index).mixture().means, centroids(*stock));
    index->add(kRows, base_rows().data());
    EXPECT_GT(multi_of(*index).nentries(), size_t(kRows));
}

TEST(IndexFactory, InnerProductAndOtherQuantizers) {
    auto index = faiss_flashgmm::index_factory(
            kDim, "IVF32_HNSW8_GMM,Flat,MA", faiss::METRIC_INNER_PRODUCT);
    auto* ivf = extract_index_ivf(index.get());
    EXPECT_EQ(ivf->metric_type, faiss::METRIC_INNER_PRODUCT);
    EXPECT_NE(dynamic_cast<faiss::IndexHNSWFlat*>(ivf->quantizer), nullptr);
    ivf->cp.min_points_per_centroid = 1;
    index->train(kRows, base_rows().data());
    index->add(kRows, base_rows().data());
    expect_well_formed(
            search(*index, query_rows(), 5), faiss::METRIC_INNER_PRODUCT);
}

TEST(IndexFactory, ErrorsNameThePart) {
    const std::pair<const char*, const char*> wrong[] = {
            {"IVF32,Flat,MA(sour)", "'sour'"},
            {"IVF32,Flat,MA(nearest,ratio=2)", "'ratio=2'"},
            {"IVF32,Flat,MA(tau=x)", "'tau=x'"},
            {"IVF32,Flat,MA(tau)", "'tau'"},
            {"IVF32,Flat,MA(distance_ratio=-1)", "distance_ratio is -1"},
            {"IVF32,Flat,MA(nearest)x", "'(nearest)x'"},
            {"IVF32,Flat,MA,MA(nearest)", "'MA(nearest)': it is the second"},
            {"IVF32_GMM(diagonal),Flat", "'diagonal'"},
            {"IVF32_GMM(init_iterations=1.5),Flat", "'init_iterations=1.5'"},
            {"IVF32_GMM_HNSW8,Flat", "'_HNSW8'"},
            {"IMI2x4_GMM,Flat", "IMI2x4_GMM"},
            {"IVF32,Flat,MA(nearest", "'MA(nearest'"},
            {"IVF32,Flat),MA", "'Flat)'"},
            {"Flat,MA", "Flat"},
            {"IVF32,Fat,MA", "Fat"},
            {"", "\"\""},
            {"IVF99999999999,Flat,MA", "IVF99999999999"},
    };
    for (const auto& [description, expected] : wrong) {
        const std::string message = message_of([&] { build(description); });
        EXPECT_NE(message.find(expected), std::string::npos) << message;
        EXPECT_NE(message.find(description), std::string::npos) << message;
    }
    // the choices are offered
    EXPECT_NE(
            message_of([&] { build("IVF32,Flat,MA(sour)"); }).find("nearest"),
            std::string::npos);
}

TEST(IndexFactory, WhatHasNoDescriptionSaysSo) {
    auto index = build("Flat");
    IndexUniqueIds unique(index.get());
    EXPECT_NE(message_of([&] { index_description(unique); }), "");
    faiss::IndexPreTransform chain(index.get());
    auto* centering = new faiss::CenteringTransform(kDim);
    chain.prepend_transform(centering);
    EXPECT_NE(message_of([&] { index_description(chain); }), "");
    delete centering;
    chain.chain.clear();
}

} // namespace
} // namespace faiss_flashgmm
