#include <faiss_flashgmm/AutoTune.h>

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include <faiss/IndexIDMap.h>
#include <faiss/IndexRefine.h>
#include <faiss/IndexReplicas.h>
#include <faiss/IndexShards.h>

#include <faiss_flashgmm/IndexUniqueIds.h>
#include <faiss_flashgmm/index_factory.h>
#include <faiss_flashgmm/index_tree.h>

#include "face/multi_assign_cases.h"

namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;

bool has_range(const ParameterSpace& space, const std::string& name) {
    return std::any_of(
            space.parameter_ranges.begin(),
            space.parameter_ranges.end(),
            [&](const faiss::ParameterRange& range) {
                return range.name == name;
            });
}

TEST(AutoTune, ReachesMultiAssignIndexesEverywhere) {
    for (const char* description :
         {"IVF32_GMM,Flat,MA",
          "PCA8,IVF32_GMM,PQ4,MA",
          "IDMap2,IVF32_GMM,Flat,MA",
          "PCA8,IVF32_HNSW8_GMM,PQ4,MA,RFlat"}) {
        SCOPED_TRACE(description);
        auto index = faiss_flashgmm::index_factory(kDim, description);
        faiss::IndexReplicas replicas(kDim);
        replicas.add_replica(index.get());
        faiss::IndexShards shards(kDim);
        shards.add_shard(&replicas);
        for (faiss::Index* each : {index.get(), (faiss::Index*)&shards}) {
            ParameterSpace space;
            space.initialize(each);
            EXPECT_TRUE(has_range(space, "nprobe"));
            const std::string all(description);
            EXPECT_EQ(
                    has_range(space, "k_factor_rf"),
                    all.find("RFlat") != std::string::npos);
            EXPECT_EQ(
                    has_range(space, "ht"),
                    all.find("PQ") != std::string::npos);
            EXPECT_EQ(
                    has_range(space, "quantizer_efSearch"),
                    all.find("HNSW") != std::string::npos);

            auto* ivf = extract_index_ivf(index.get());
            ivf->nprobe = 1;
            space.set_index_parameters(
                    each, "nprobe=7,max_codes=123,assign_tau=0.25");
            EXPECT_EQ(ivf->nprobe, 7u);
            EXPECT_EQ(ivf->max_codes, 123u);
            EXPECT_EQ(find_multi_assign(*index)->assigner.tau, 0.25);
        }
    }
}

TEST(AutoTune, ExploresOperatingPoints) {
    MultiIndex index =
            make_filled({Codec::flat, faiss::METRIC_L2, AssignPolicy::nearest});
    index->nprobe = kLists;
    const Results exact = search(*index, query_rows(), 1);
    faiss::OneRecallAtRCriterion criterion(kQueries, 1);
    criterion.set_groundtruth(1, nullptr, exact.labels.data());
    ParameterSpace space;
    space.verbose = 0;
    space.n_experiments = 0;
    space.initialize(index.ivf.get());
    faiss::OperatingPoints points;
    space.explore(
            index.ivf.get(), kQueries, query_rows().data(), criterion, &points);
    EXPECT_EQ(points.all_pts.size(), space.n_combinations());
    EXPECT_GT(points.optimal_pts.back().perf, 0.99);
}

TEST(AutoTune, SetsCopiesAndRefusesWhatNoPartHas) {
    MultiIndex index = make_trained(
            {Codec::flat, faiss::METRIC_L2, AssignPolicy::nearest});
    IndexUniqueIds unique(index.ivf.get());
    const ParameterSpace space;
    space.set_index_parameter(&unique, "max_copies", 4);
    EXPECT_EQ(unique.max_copies, 4);
    for (const char* name : {"assign_policy", "assign_x", "nonsense"}) {
        EXPECT_NE(
                message_of(
                        [&] { space.set_index_parameter(&unique, name, 1); }),
                "");
    }
    EXPECT_NE(
            message_of([&] {
                space.set_index_parameter(&unique, "max_copies", 0);
            }),
            "");
    // a value that is refused changes nothing
    EXPECT_NE(
            message_of([&] {
                space.set_index_parameter(&unique, "assign_distance_ratio", -3);
            }),
            "");
    EXPECT_EQ(index.multi->assigner.distance_ratio, 0);
}

} // namespace
} // namespace faiss_flashgmm
