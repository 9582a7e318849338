#include <faiss_flashgmm/AutoAssign.h>

#include <algorithm>

#include <gtest/gtest.h>

#include <faiss/IndexFlat.h>

#include "face/multi_assign_cases.h"

namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;

struct AutoAssignTest : ::testing::Test {
    static constexpr idx_t n = 2000;
    std::vector<float> rows = clustered_rows(n, kDim, kLists, 21);
    faiss::IndexFlatL2 quantizer{kDim};
    IndexIVFFlatMultiAssign index{&quantizer, kDim, kLists};
    AutoAssignOptions options;

    AutoAssignTest() {
        index.cp.niter = 3;
        index.assigner.demand_parameters.probes = 4;
        options.held_out = 100;
    }

    AutoAssignResult run() {
        return auto_assign(index, n, rows.data(), options);
    }
};

TEST_F(AutoAssignTest, ChoosesWhatScansLeastWithinTheLimit) {
    options.max_inflation = 1.4;
    const AutoAssignResult result = run();
    EXPECT_EQ(result.trials.size(), 6u + 7 + 7);
    EXPECT_EQ(result.rows, n - 100);
    EXPECT_DOUBLE_EQ(result.trials[0].scan_gain, 1);
    EXPECT_EQ(result.trials[0].name(), "k-means: single");
    for (const AssignTrial& trial : result.trials) {
        EXPECT_GE(trial.scanned, result.trials[result.best].scanned);
        EXPECT_LE(trial.entries_per_vector, 1.4 + 1e-3);
        EXPECT_NEAR(
                trial.scan_gain,
                result.trials[0].scanned / trial.scanned,
                1e-9);
        EXPECT_NE(result.table().find(trial.name()), std::string::npos);
    }
    EXPECT_GT(result.trials[result.best].scan_gain, 1);
    EXPECT_EQ(result.table().find("* "), result.table().rfind("* "));

    const AssignTrial& best = result.trials[result.best];
    EXPECT_EQ(index.assigner.policy, best.assigner.policy);
    EXPECT_EQ(index.assigner.max_inflation, best.assigner.max_inflation);
    EXPECT_EQ(index.kmeans_centroids, best.kmeans_centroids);
    EXPECT_EQ(index.gmm.variance, best.variance);
    EXPECT_EQ(index.gmm.weights, best.weights);
    index.train(n, rows.data());
    index.add(n, rows.data());
    EXPECT_GT(index.entries_per_vector(), 1);
    EXPECT_LE(index.entries_per_vector(), 1.4 + 1e-3);
}

TEST_F(AutoAssignTest, ChoosesTheSameAgain) {
    const AutoAssignResult first = run(), second = run();
    ASSERT_EQ(first.trials.size(), second.trials.size());
    EXPECT_EQ(first.table(), second.table());
}

TEST_F(AutoAssignTest, FewerRowsGetListsInProportion) {
    options.max_rows = 500;
    const AutoAssignResult result = run();
    EXPECT_EQ(result.rows, 500);
    EXPECT_EQ(result.nlist, kLists / 4);
}

TEST_F(AutoAssignTest, GivenCentroidsStay) {
    index.train(n, rows.data());
    const std::vector<float> before(
            quantizer.get_xb(), quantizer.get_xb() + kLists * kDim);
    const AutoAssignResult result = auto_assign(
            index, n, rows.data(), options, kQueries, query_rows().data());
    EXPECT_EQ(result.trials.size(), 7u);
    EXPECT_EQ(result.rows, n);
    EXPECT_EQ(
            before,
            std::vector<float>(
                    quantizer.get_xb(), quantizer.get_xb() + kLists * kDim));
}

TEST_F(AutoAssignTest, OneListLeavesTheCentroidsToChoose) {
    options.max_inflation = 1;
    EXPECT_EQ(run().trials.size(), 3u);
    EXPECT_EQ(index.assigner.policy, AssignPolicy::single);
}

TEST_F(AutoAssignTest, AnEndedBudgetLeavesKMeans) {
    options.max_seconds = 1e-9;
    for (const AssignTrial& trial : run().trials) {
        EXPECT_TRUE(trial.kmeans_centroids);
    }
}

TEST_F(AutoAssignTest, RefusesWhatItCannotTry) {
    faiss::IndexIVFFlat stock(&quantizer, kDim, kLists);
    EXPECT_NE(
            message_of([&] {
                auto_assign(stock, n, rows.data());
            }).find("multi-assign"),
            std::string::npos);
    EXPECT_NE(
            message_of([&] { auto_assign(index, 63, rows.data()); }).find("63"),
            std::string::npos);
    options.recall = 1.5;
    EXPECT_NE(message_of([&] { run(); }).find("1.5"), std::string::npos);
    options = {};
    options.held_out = 0;
    EXPECT_NE(message_of([&] { run(); }).find("held_out"), std::string::npos);
    options = {};
    rows[7] = NAN;
    EXPECT_NE(message_of([&] { run(); }), "");
    EXPECT_EQ(index.assigner.policy, AssignPolicy::posterior);
}

} // namespace
} // namespace faiss_flashgmm
