#include <faiss_flashgmm/IndexIVFMultiAssign.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include <faiss/Clustering.h>
#include <faiss/IndexFlat.h>
#include <faiss/IndexHNSW.h>
#include <faiss/impl/AuxIndexStructures.h>

#include <faiss_flashgmm/train_ivf.h>

#include "face/multi_assign_cases.h"

namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;

std::vector<float> centroids_of(const faiss::IndexIVF& index) {
    std::vector<float> centroids(index.quantizer->ntotal * index.d);
    index.quantizer->reconstruct_n(
            0, index.quantizer->ntotal, centroids.data());
    return centroids;
}

std::vector<float> kmeans_centroids(int niter = 5) {
    faiss::Clustering clustering(kDim, kLists);
    clustering.niter = niter;
    clustering.min_points_per_centroid = 1;
    faiss::IndexFlatL2 index(kDim);
    clustering.train(kRows, base_rows().data(), index);
    return clustering.centroids;
}

struct TrainTest : ::testing::TestWithParam<Case> {
    MultiIndex index = make_untrained(GetParam());
    const std::vector<float>& rows = base_rows();

    void expect_untouched() const {
        EXPECT_FALSE(index->is_trained);
        EXPECT_EQ(index->quantizer->ntotal, 0);
        EXPECT_EQ(index.multi->mixture().k, 0);
        EXPECT_TRUE(index.multi->em_stats.empty());
    }
};

INSTANTIATE_TEST_SUITE_P(
        MultiAssign,
        TrainTest,
        ::testing::ValuesIn(some_cases()),
        case_name);

TEST_P(TrainTest, FitsAMixtureWhoseMeansAreTheCentroids) {
    index->cp.niter = 7;
    index->train(kRows, rows.data());
    EXPECT_TRUE(index->is_trained);
    const Mixture& mixture = index.multi->mixture();
    mixture.check();
    ASSERT_EQ(mixture.k, kLists);
    ASSERT_EQ(mixture.d, kDim);
    EXPECT_EQ(centroids_of(*index), mixture.means);
    ASSERT_EQ(index.multi->em_stats.size(), 7u);
    for (size_t i = 1; i < 7; i++) {
        if (GetParam().metric == faiss::METRIC_L2) {
            EXPECT_GE(
                    index.multi->em_stats[i].log_likelihood,
                    index.multi->em_stats[i - 1].log_likelihood - 1e-6);
        } else {
            EXPECT_TRUE(std::isfinite(index.multi->em_stats[i].log_likelihood));
        }
    }
    EXPECT_EQ(
            std::adjacent_find(
                    mixture.variances.begin(),
                    mixture.variances.end(),
                    std::not_equal_to<>()) == mixture.variances.end(),
            false); // per component, not k-means
    if (GetParam().metric == faiss::METRIC_INNER_PRODUCT) {
        for (int c = 0; c < kLists; c++) {
            double norm = 0;
            for (int j = 0; j < kDim; j++) {
                norm += mixture.mean(c)[j] * mixture.mean(c)[j];
            }
            EXPECT_NEAR(norm, 1, 1e-5); // spherical
        }
    }
}

TEST_P(TrainTest, OptionsReachTheFit) {
    index.multi->gmm.variance = VarianceModel::tied;
    index.multi->gmm.weights = WeightModel::uniform;
    index->cp.nredo = 2;
    index->cp.niter = 3;
    index->train(kRows, rows.data());
    const Mixture& mixture = index.multi->mixture();
    for (int c = 1; c < kLists; c++) {
        EXPECT_DOUBLE_EQ(mixture.variances[c], mixture.variances[0]);
        EXPECT_DOUBLE_EQ(mixture.weights[c], mixture.weights[0]);
    }
    EXPECT_EQ(index.multi->em_stats.size(), 6u);
}

TEST_P(TrainTest, VerboseReachesTheFit) {
    ::testing::internal::CaptureStdout();
    index->train(kRows, rows.data());
    EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
    MultiIndex loud = make_untrained(GetParam());
    loud->verbose = true;
    ::testing::internal::CaptureStdout();
    loud->train(kRows, rows.data());
    EXPECT_NE(
            ::testing::internal::GetCapturedStdout().find("log-likelihood"),
            std::string::npos);
}

TEST_P(TrainTest, KeepsGivenCentroidsAndFitsAroundThem) {
    const std::vector<float> centroids = kmeans_centroids();
    index->quantizer->add(kLists, centroids.data());
    index->train(kRows, rows.data());
    EXPECT_EQ(centroids_of(*index), centroids);
    const bool needs = GetParam().policy == AssignPolicy::posterior;
    const Mixture& mixture = index.multi->mixture();
    EXPECT_EQ(mixture.k, needs ? kLists : 0);
    if (needs) {
        mixture.check();
        EXPECT_EQ(mixture.means, centroids);
        EXPECT_NE(mixture.variances[0], mixture.variances[1]);
    }
    index->add(kRows, rows.data());
    EXPECT_EQ(index->ntotal, kRows);
    EXPECT_GT(index.multi->nentries(), size_t(kRows));

    // a policy that needs a mixture can follow once the index is empty
    index.multi->assigner.policy = AssignPolicy::posterior;
    index->reset();
    index->train(kRows, rows.data());
    EXPECT_EQ(index.multi->mixture().k, kLists);
    EXPECT_EQ(centroids_of(*index), centroids);
}

TEST_P(TrainTest, TakesAGivenMixture) {
    FlashGMMClustering clustering(kDim, kLists);
    clustering.niter = 4;
    clustering.min_points_per_centroid = 1;
    clustering.train(kRows, rows.data(), *index->quantizer);
    index.multi->set_mixture(clustering.mixture);
    index->train(kRows, rows.data()); // trains the codec alone
    EXPECT_EQ(index.multi->mixture().variances, clustering.mixture.variances);
    EXPECT_EQ(centroids_of(*index), clustering.mixture.means);
    EXPECT_TRUE(index.multi->em_stats.empty());
    index->add(kRows, rows.data());
    EXPECT_EQ(index->ntotal, kRows);
}

TEST_P(TrainTest, RefusesAMixtureOfOtherLists) {
    index->train(kRows, rows.data());
    const Mixture good = index.multi->mixture();
    auto set = [&](const Mixture& mixture) {
        return message_of([&] { index.multi->set_mixture(mixture); });
    };
    EXPECT_NE(set(Mixture(kLists - 1, kDim)).find("31"), std::string::npos);
    EXPECT_NE(set(Mixture(kLists, kDim + 1)).find("17"), std::string::npos);
    Mixture bad = good;
    bad.means[5 * kDim + 3] += 1;
    EXPECT_NE(set(bad).find("mean 5"), std::string::npos);
    bad = good;
    bad.variances[2] = -1;
    EXPECT_NE(set(bad), "");
    bad = good;
    bad.weights.pop_back();
    EXPECT_NE(set(bad), "");
    EXPECT_EQ(index.multi->mixture().variances, good.variances);
    index.multi->set_mixture(good);

    MultiIndex untrained = make_untrained(GetParam());
    EXPECT_NE(
            message_of([&] {
                untrained.multi->set_mixture(good);
            }).find("holds 0"),
            std::string::npos);
}

TEST_P(TrainTest, NewCentroidsGetANewMixture) {
    index->train(kRows, rows.data());
    FlashGMMClustering clustering(kDim, kLists);
    clustering.niter = 2;
    clustering.seed = 99;
    clustering.min_points_per_centroid = 1;
    train_ivf(*index, clustering, kRows, rows.data());
    EXPECT_EQ(centroids_of(*index), clustering.centroids);
    const Mixture& mixture = index.multi->mixture();
    EXPECT_TRUE(mixture.k == 0 || mixture.means == clustering.centroids);
    if (GetParam().policy == AssignPolicy::posterior) {
        EXPECT_EQ(mixture.k, kLists);
    }
    index->add(kRows, rows.data());
}

TEST_P(TrainTest, AQuantizerThatTrainsItselfGivesItsMixture) {
    IndexFlatGMM quantizer(kDim, kLists, GetParam().metric);
    quantizer.clustering.niter = 4;
    quantizer.clustering.min_points_per_centroid = 1;
    delete index->quantizer;
    index->own_fields = false;
    index->quantizer = &quantizer;
    index->quantizer_trains_alone = 1;
    index->train(kRows, rows.data());
    EXPECT_EQ(centroids_of(*index), quantizer.clustering.mixture.means);
    if (GetParam().policy == AssignPolicy::posterior) {
        EXPECT_EQ(
                index.multi->mixture().variances,
                quantizer.clustering.mixture.variances);
    }
    index->add(kRows, rows.data());
    EXPECT_EQ(index->ntotal, kRows);
}

TEST_P(TrainTest, AFilledIndexIsNotTrainedAgain) {
    index->train(kRows, rows.data());
    index->add(kRows, rows.data());
    const std::vector<float> centroids = centroids_of(*index);
    EXPECT_NE(
            message_of([&] {
                index->train(kRows, rows.data());
            }).find("reset()"),
            std::string::npos);
    EXPECT_EQ(centroids_of(*index), centroids);
    index->reset();
    index->train(kRows, rows.data());
    EXPECT_EQ(centroids_of(*index), centroids); // as stock FAISS keeps them
}

TEST_P(TrainTest, BadInputLeavesTheIndexUntrained) {
    std::vector<float> bad = rows;
    bad[900 * kDim + 4] = NAN;
    EXPECT_NE(
            message_of([&] {
                index->train(kRows, bad.data());
            }).find("row 900, column 4"),
            std::string::npos);
    expect_untouched();
    EXPECT_NE(message_of([&] { index->train(0, nullptr); }), "");
    EXPECT_NE(message_of([&] { index->train(5, rows.data()); }), "");
    expect_untouched();
    index.multi->assigner.tau = NAN;
    EXPECT_NE(message_of([&] { index->train(kRows, rows.data()); }), "");
    index.multi->assigner.tau = -1;
    expect_untouched();
    index->train(kRows, rows.data());
    EXPECT_TRUE(index->is_trained);
}

/// Interrupts FAISS at the n-th time it asks.
struct InterruptAfter : faiss::InterruptCallback {
    int left;
    explicit InterruptAfter(int n) : left(n) {}
    bool want_interrupt() override {
        return left-- <= 0;
    }
};

TEST_P(TrainTest, AnInterruptAnywhereLeavesTheIndexUntrained) {
    bool done = false;
    int stops = 0;
    for (int asked = 0; !done && asked < 2000; asked += 1 + asked / 2) {
        faiss::InterruptCallback::instance =
                std::make_unique<InterruptAfter>(asked);
        try {
            index->train(kRows, rows.data());
            done = true;
        } catch (const faiss::FaissException&) {
            stops++;
            expect_untouched();
        }
        faiss::InterruptCallback::clear_instance();
    }
    EXPECT_GT(stops, 1);
    EXPECT_TRUE(done);
    index->add(kRows, rows.data());
    EXPECT_EQ(index->ntotal, kRows);
}

TEST_P(TrainTest, AFailureKeepsATrainedIndexTrained) {
    index->train(kRows, rows.data());
    index->add(kRows, rows.data());
    index->nprobe = 4;
    const Results before = search(*index, query_rows(), 10);
    const Mixture mixture = index.multi->mixture();
    index->reset();
    const std::vector<float> others = clustered_rows(kRows, kDim, 5, 55, 56);
    // when some of the product quantizer has changed already
    faiss::InterruptCallback::instance = std::make_unique<InterruptAfter>(90);
    bool interrupted = false;
    try {
        index->train(kRows, others.data());
    } catch (const faiss::FaissException&) {
        interrupted = true;
    }
    faiss::InterruptCallback::clear_instance();
    EXPECT_EQ(index.multi->mixture().variances, mixture.variances);
    if (interrupted) {
        index->add(kRows, rows.data());
        EXPECT_EQ(search(*index, query_rows(), 10), before);
    }
    const std::string name = GetParam().name(); // other codecs do not ask
    EXPECT_EQ(
            interrupted,
            name.starts_with("pq") || name.starts_with("fast_scan"));
}

TEST(MultiAssignTrain, AGraphCanBeTheQuantizer) {
    faiss::IndexHNSWFlat quantizer(kDim, 16);
    quantizer.hnsw.efSearch = 64;
    IndexIVFFlatMultiAssign index(&quantizer, kDim, kLists);
    index.cp.niter = 5;
    index.cp.min_points_per_centroid = 1;
    index.train(kRows, base_rows().data());
    EXPECT_EQ(centroids_of(index), index.mixture().means);
    for (AssignPolicy policy :
         {AssignPolicy::posterior, AssignPolicy::nearest}) {
        index.assigner.policy = policy;
        index.reset();
        index.add(kRows, base_rows().data());
        EXPECT_GT(index.nentries(), size_t(kRows));
        index.nprobe = 4;
        expect_well_formed(search(index, query_rows(), 20), faiss::METRIC_L2);
    }
}

TEST(MultiAssignTrain, EveryPolicyTrainsAMixtureForALaterOne) {
    MultiIndex index = make_untrained(
            {Codec::flat, faiss::METRIC_L2, AssignPolicy::single});
    index->train(kRows, base_rows().data());
    EXPECT_EQ(index.multi->mixture().k, kLists); // for a later policy
    index.multi->assigner.policy = AssignPolicy::posterior;
    index->add(kRows, base_rows().data());
    EXPECT_GT(index.multi->nentries(), size_t(kRows));
}

} // namespace
} // namespace faiss_flashgmm
