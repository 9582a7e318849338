#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <faiss/IndexFlat.h>
#include <faiss/IndexIVF.h>
#include <faiss/IndexIVFFlat.h>
#include <faiss/IndexIVFPQ.h>
#include <faiss/impl/FaissException.h>
#include <faiss/index_factory.h>
#include <gtest/gtest.h>

#include <faiss_flashgmm/train_ivf.h>

#include "em/blobs.h"

namespace {

using namespace faiss_flashgmm;

constexpr int kN = 3000;
constexpr int kD = 16;
constexpr int kLists = 24;

/// Index strings of stock IVF types.
class TrainIvf : public testing::TestWithParam<std::string> {
   protected:
    void SetUp() override {
        x_ = make_blobs(kN, kD, 60, 1.0);
        index_.reset(faiss::index_factory(kD, GetParam().c_str()));
        ivf_ = dynamic_cast<faiss::IndexIVF*>(index_.get());
        ASSERT_NE(ivf_, nullptr);
        ivf_->cp.min_points_per_centroid = 1;
    }

    /// The vectors of the coarse quantizer.
    std::vector<float> centroids() const {
        std::vector<float> v(kLists * kD);
        ivf_->quantizer->reconstruct_n(0, kLists, v.data());
        return v;
    }

    /// Share of the rows found by searching for themselves in all lists.
    double self_recall() const {
        std::vector<float> distances(kN * 10);
        std::vector<idx_t> labels(kN * 10);
        ivf_->nprobe = kLists;
        ivf_->search(kN, x_.data(), 10, distances.data(), labels.data());
        int found = 0;
        for (int i = 0; i < kN; i++) {
            for (int j = 0; j < 10; j++) {
                found += labels[i * 10 + j] == i;
            }
        }
        return double(found) / kN;
    }

    std::vector<float> x_;
    std::unique_ptr<faiss::Index> index_;
    faiss::IndexIVF* ivf_ = nullptr;
};

TEST_P(TrainIvf, TheMixtureIsTheCoarseQuantizer) {
    const FlashGMMClustering clustering =
            train_ivf(*ivf_, kN, x_.data(), FlashGMMOptions{});
    EXPECT_TRUE(ivf_->is_trained);
    EXPECT_EQ(centroids(), clustering.centroids);
    EXPECT_EQ(clustering.niter, ivf_->cp.niter);
    clustering.mixture.check();

    // k-means with the same parameters would have found other centroids.
    std::unique_ptr<faiss::Index> stock(
            faiss::index_factory(kD, GetParam().c_str()));
    auto& stock_ivf = dynamic_cast<faiss::IndexIVF&>(*stock);
    stock_ivf.cp = ivf_->cp;
    stock->train(kN, x_.data());
    std::vector<float> kmeans(kLists * kD);
    stock_ivf.quantizer->reconstruct_n(0, kLists, kmeans.data());
    EXPECT_NE(kmeans, clustering.centroids);

    ivf_->add(kN, x_.data());
    EXPECT_EQ(ivf_->ntotal, kN);
    EXPECT_GT(self_recall(), 0.9);
}

TEST_P(TrainIvf, AQuantizerTrainsItself) {
    IndexFlatGMM quantizer(kD, kLists);
    quantizer.clustering.min_points_per_centroid = 1;
    quantizer.clustering.niter = 7;
    delete ivf_->quantizer;
    ivf_->quantizer = &quantizer;
    ivf_->own_fields = false;
    ivf_->quantizer_trains_alone = 1;
    ivf_->train(kN, x_.data());
    EXPECT_TRUE(ivf_->is_trained);
    EXPECT_EQ(quantizer.clustering.em_stats.size(), 7); // it was the mixture
    EXPECT_EQ(centroids(), quantizer.clustering.centroids);
    ivf_->add(kN, x_.data());
    EXPECT_GT(self_recall(), 0.9);
    index_.reset();
}

TEST_P(TrainIvf, FillsAQuantizerThatCouldTrainItself) {
    IndexFlatGMM quantizer(kD, kLists);
    delete ivf_->quantizer;
    ivf_->quantizer = &quantizer;
    ivf_->own_fields = false;
    const FlashGMMClustering clustering = train_ivf(*ivf_, kN, x_.data());
    EXPECT_EQ(quantizer.ntotal, kLists);
    EXPECT_EQ(centroids(), clustering.centroids);
    index_.reset();
}

TEST_P(TrainIvf, TrainsAgainWhileEmpty) {
    train_ivf(*ivf_, kN, x_.data());
    const std::vector<float> first = centroids();
    std::vector<float> y = make_blobs(kN, kD, 60, 1.0, /*seed=*/5);
    const FlashGMMClustering second = train_ivf(*ivf_, kN, y.data());
    EXPECT_EQ(centroids(), second.centroids);
    EXPECT_NE(centroids(), first);

    ivf_->add(10, y.data());
    try {
        train_ivf(*ivf_, kN, y.data());
        FAIL() << "a filled index was retrained";
    } catch (const faiss::FaissException& e) {
        EXPECT_NE(std::string(e.what()).find("10 vectors"), std::string::npos);
    }
    EXPECT_EQ(centroids(), second.centroids);
}

INSTANTIATE_TEST_SUITE_P(
        StockIndexes,
        TrainIvf,
        testing::Values(
                "IVF24,Flat",
                "IVF24,PQ8x4",
                "IVF24,SQ8",
                "IVF24,PQ8x4fs"),
        [](const auto& info) {
            std::string name = info.param;
            std::replace(name.begin(), name.end(), ',', '_');
            return name;
        });

TEST(TrainIvfErrors, NamesWhatDoesNotFit) {
    faiss::IndexFlatL2 quantizer(kD);
    faiss::IndexIVFFlat ivf(&quantizer, kD, kLists);
    const auto x = make_blobs(kN, kD, 60, 1.0);
    FlashGMMClustering wrong(kD, kLists + 1);
    try {
        train_ivf(ivf, wrong, kN, x.data());
        FAIL();
    } catch (const faiss::FaissException& e) {
        EXPECT_NE(std::string(e.what()).find("k = 25"), std::string::npos);
        EXPECT_NE(std::string(e.what()).find("nlist = 24"), std::string::npos);
    }
    EXPECT_EQ(quantizer.ntotal, 0);
    EXPECT_THROW(train_ivf(ivf, kLists - 1, x.data()), faiss::FaissException);
    EXPECT_EQ(quantizer.ntotal, 0);
    EXPECT_FALSE(ivf.is_trained);
}

TEST(TrainIvfErrors, AFailedTrainingLeavesTheQuantizerAsItWas) {
    auto x = make_blobs(kN, kD, 60, 1.0);
    IndexFlatGMM quantizer(kD, kLists);
    EXPECT_FALSE(quantizer.is_trained);
    quantizer.train(kN, x.data());
    EXPECT_EQ(quantizer.ntotal, kLists);
    std::vector<float> before(kLists * kD), after(kLists * kD);
    quantizer.reconstruct_n(0, kLists, before.data());
    x[40 * kD + 3] = INFINITY;
    EXPECT_THROW(quantizer.train(kN, x.data()), faiss::FaissException);
    quantizer.reconstruct_n(0, kLists, after.data());
    EXPECT_EQ(after, before);
    EXPECT_TRUE(quantizer.is_trained);
}

TEST(TrainIvfMetric, InnerProductIsSpherical) {
    const auto x = make_blobs(kN, kD, 60, 1.0);
    faiss::IndexFlatIP quantizer(kD);
    faiss::IndexIVFFlat ivf(
            &quantizer, kD, kLists, faiss::METRIC_INNER_PRODUCT);
    EXPECT_TRUE(ivf.cp.spherical);
    const FlashGMMClustering clustering = train_ivf(ivf, kN, x.data());
    for (int i = 0; i < kLists; i++) {
        double norm = 0;
        for (int j = 0; j < kD; j++) {
            norm += std::pow(clustering.centroids[i * kD + j], 2);
        }
        EXPECT_NEAR(norm, 1, 1e-5);
    }
}

} // namespace
