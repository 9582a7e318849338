#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include <faiss/Clustering.h>
#include <faiss/IndexFlat.h>
#include <faiss/IndexPQ.h>
#include <faiss/IndexScalarQuantizer.h>
#include <faiss/impl/AuxIndexStructures.h>
#include <faiss/impl/FaissException.h>
#include <gtest/gtest.h>

#include <faiss_flashgmm/FlashGMMClustering.h>
#include <faiss_flashgmm/utils/half.h>

#include "em/blobs.h"

namespace {

using namespace faiss_flashgmm;

constexpr int kN = 2000;
constexpr int kD = 12;
constexpr int kK = 20;

std::vector<float> blobs() {
    return make_blobs(kN, kD, kK, 2.0);
}

faiss::ClusteringParameters quiet() {
    faiss::ClusteringParameters cp;
    cp.min_points_per_centroid = 1;
    return cp;
}

template <class Function>
std::string faiss_message_of(Function&& function) {
    try {
        function();
    } catch (const faiss::FaissException& e) {
        return e.what();
    }
    return "";
}

#define EXPECT_CONTAINS(text, part)                            \
    EXPECT_NE(std::string(text).find(part), std::string::npos) \
            << "got: " << text

/// Squared distance to the nearest centroid, summed over the rows.
double quantization_error(
        const std::vector<float>& x,
        const faiss::Index& index) {
    const idx_t n = idx_t(x.size()) / index.d;
    std::vector<float> distances(n);
    std::vector<idx_t> labels(n);
    index.search(n, x.data(), 1, distances.data(), labels.data());
    return std::accumulate(distances.begin(), distances.end(), 0.0);
}

TEST(FlashGMMClustering, FillsCentroidsIndexMixtureAndStats) {
    const auto x = blobs();
    FlashGMMClustering clustering(kD, kK, quiet());
    faiss::IndexFlatL2 index(kD);
    clustering.train(kN, x.data(), index);
    ASSERT_EQ(index.ntotal, kK);
    ASSERT_EQ(clustering.centroids.size(), kK * kD);
    std::vector<float> stored(kK * kD);
    index.reconstruct_n(0, kK, stored.data());
    EXPECT_EQ(stored, clustering.centroids);
    clustering.mixture.check();
    EXPECT_EQ(clustering.mixture.means, clustering.centroids);
    EXPECT_EQ(clustering.iteration_stats.size(), clustering.niter);
    EXPECT_EQ(clustering.em_stats.size(), clustering.niter);
    EXPECT_EQ(clustering.distinct_centroids, kK);
    for (const auto& s : clustering.iteration_stats) {
        EXPECT_GT(s.obj, 0);
        EXPECT_GE(s.imbalance_factor, 1 - 1e-9);
    }
    EXPECT_LE(
            clustering.iteration_stats.back().obj,
            clustering.iteration_stats.front().obj);
    EXPECT_LT(
            quantization_error(x, index),
            clustering.iteration_stats.front().obj * 1.001);
}

TEST(FlashGMMClustering, MoreCentroidsQuantizeBetter) {
    const auto x = blobs();
    double before = std::numeric_limits<double>::infinity();
    for (const int k : {8, 16, 64}) {
        FlashGMMClustering clustering(kD, k, quiet());
        faiss::IndexFlatL2 index(kD);
        clustering.train(kN, x.data(), index);
        const double error = quantization_error(x, index);
        EXPECT_LT(error, before);
        before = error;
    }
}

TEST(FlashGMMClustering, QuantizesAboutAsWellAsKMeans) {
    const auto x = make_blobs(4000, kD, 60, 1.0);
    FlashGMMOptions options;
    options.variance = VarianceModel::tied;
    options.weights = WeightModel::uniform;
    FlashGMMClustering mixture(kD, 40, quiet(), options);
    faiss::Clustering kmeans(kD, 40, quiet());
    faiss::IndexFlatL2 a(kD), b(kD);
    mixture.train(4000, x.data(), a);
    kmeans.train(4000, x.data(), b);
    EXPECT_LT(quantization_error(x, a), 1.05 * quantization_error(x, b));
}

TEST(FlashGMMClustering, HonoursNiterNredoAndSeed) {
    const auto x = blobs();
    auto cp = quiet();
    cp.niter = 4;
    cp.nredo = 3;
    FlashGMMClustering a(kD, kK, cp);
    faiss::IndexFlatL2 index(kD);
    a.train(kN, x.data(), index);
    EXPECT_EQ(a.em_stats.size(), 12);
    ASSERT_EQ(a.iteration_stats.size(), 4); // those of the best run
    double best = -std::numeric_limits<double>::infinity();
    double best_objective = 0;
    for (int redo = 0; redo < 3; redo++) {
        const IterationStats& last = a.em_stats[redo * 4 + 3];
        if (last.log_likelihood > best) {
            best = last.log_likelihood;
            best_objective = last.objective;
        }
    }
    EXPECT_FLOAT_EQ(a.iteration_stats.back().obj, float(best_objective));

    FlashGMMClustering b(kD, kK, cp);
    b.train(kN, x.data(), index);
    EXPECT_EQ(b.centroids, a.centroids);
    cp.seed = 99;
    FlashGMMClustering c(kD, kK, cp);
    c.train(kN, x.data(), index);
    EXPECT_NE(c.centroids, a.centroids);
}

TEST(FlashGMMClustering, RedoByLikelihoodForInnerProductToo) {
    auto x = blobs();
    auto cp = quiet();
    cp.niter = 3;
    cp.nredo = 3;
    FlashGMMClustering clustering(kD, kK, cp);
    faiss::IndexFlatIP index(kD);
    clustering.train(kN, x.data(), index);
    EXPECT_EQ(index.ntotal, kK);
    std::vector<float> stored(kK * kD);
    index.reconstruct_n(0, kK, stored.data());
    EXPECT_EQ(stored, clustering.centroids);
}

TEST(FlashGMMClustering, SphericalAndIntegerCentroids) {
    auto x = blobs();
    const auto expect_unit = [&](const FlashGMMClustering& c) {
        for (int i = 0; i < kK; i++) {
            double norm = 0;
            for (int j = 0; j < kD; j++) {
                norm += double(c.centroids[i * kD + j]) *
                        c.centroids[i * kD + j];
            }
            EXPECT_NEAR(norm, 1, 1e-5);
        }
    };
    auto cp = quiet();
    faiss::IndexFlatL2 l2(kD);
    faiss::IndexFlatIP ip(kD);
    FlashGMMClustering by_metric(kD, kK, cp);
    by_metric.train(kN, x.data(), ip);
    expect_unit(by_metric);
    cp.spherical = true;
    FlashGMMClustering by_flag(kD, kK, cp);
    by_flag.train(kN, x.data(), l2);
    expect_unit(by_flag);
    cp.spherical = false;
    cp.int_centroids = true;
    FlashGMMClustering integers(kD, kK, cp);
    integers.train(kN, x.data(), l2);
    for (const float v : integers.centroids) {
        EXPECT_EQ(v, std::round(v));
    }
}

TEST(FlashGMMClustering, UnequalNormsDoNotEmptyListsUnderInnerProduct) {
    std::vector<float> x = make_blobs(4000, 16, 200, 1.0);
    std::mt19937 random(2);
    std::lognormal_distribution<float> norm(0, 1.0f);
    for (int i = 0; i < 4000; i++) {
        const float s = norm(random);
        for (int j = 0; j < 16; j++) {
            x[i * 16 + j] *= s;
        }
    }
    FlashGMMClustering clustering(16, 64, quiet());
    faiss::IndexFlatIP index(16);
    clustering.train(4000, x.data(), index);
    std::vector<idx_t> labels(4000);
    index.assign(4000, x.data(), labels.data());
    std::vector<int> sizes(64);
    for (const idx_t label : labels) {
        sizes.at(label)++;
    }
    EXPECT_LE(std::count(sizes.begin(), sizes.end(), 0), 3);
}

TEST(FlashGMMClustering, WarmStartAndFrozenCentroids) {
    const auto x = blobs();
    auto cp = quiet();
    cp.niter = 5;
    faiss::IndexFlatL2 index(kD);
    FlashGMMClustering cold(kD, kK, cp);
    cold.train(kN, x.data(), index);
    FlashGMMClustering warm(kD, kK, cp);
    warm.centroids = cold.centroids;
    warm.train(kN, x.data(), index);
    EXPECT_LE(
            warm.iteration_stats.front().obj, cold.iteration_stats.front().obj);

    // Fewer than k: used first, the rest drawn.
    cp.niter = 0;
    FlashGMMClustering partial(kD, kK, cp);
    partial.centroids.assign(x.begin(), x.begin() + 7 * kD);
    partial.train(kN, x.data(), index);
    EXPECT_EQ(partial.centroids.size(), kK * kD);
    for (int i = 0; i < 7 * kD; i++) {
        EXPECT_NEAR(partial.centroids[i], x[i], 1e-5);
    }

    cp.niter = 5;
    cp.frozen_centroids = true;
    FlashGMMClustering frozen(kD, kK, cp);
    frozen.centroids.assign(x.begin(), x.begin() + 7 * kD);
    frozen.train(kN, x.data(), index);
    EXPECT_TRUE(std::equal(
            x.begin(), x.begin() + 7 * kD, frozen.centroids.begin()));
    EXPECT_EQ(frozen.centroids.size(), kK * kD);
}

/// Counts the calls that replace its contents.
struct CountingIndex : faiss::IndexFlatL2 {
    int trained = 0;
    explicit CountingIndex(int d) : IndexFlatL2(d) {}
    void train(idx_t, const float*) override {
        trained++;
        is_trained = true;
    }
};

TEST(FlashGMMClustering, TrainsTheIndexIfAsked) {
    const auto x = blobs();
    auto cp = quiet();
    CountingIndex index(kD);
    FlashGMMClustering plain(kD, kK, cp);
    plain.train(kN, x.data(), index);
    EXPECT_EQ(index.trained, 0);
    plain.train(kN, x.data(), index); // what was there is replaced
    EXPECT_EQ(index.ntotal, kK);
    cp.update_index = true;
    FlashGMMClustering update(kD, kK, cp);
    update.train(kN, x.data(), index);
    EXPECT_EQ(index.trained, 1);
    index.is_trained = false;
    plain.train(kN, x.data(), index);
    EXPECT_EQ(index.trained, 2);
}

TEST(FlashGMMClustering, SamplesMoreRowsThanTheMaximum) {
    const auto x = blobs();
    auto cp = quiet();
    cp.max_points_per_centroid = 10;
    cp.niter = 1;
    FlashGMMClustering few(kD, kK, cp);
    faiss::IndexFlatL2 index(kD);
    int64_t rows = 0;
    few.gmm.progress = [&](const Progress& p) {
        if (p.stage == Progress::Stage::em) {
            rows = p.rows_total;
        }
    };
    few.train(kN, x.data(), index);
    EXPECT_EQ(rows, 10 * kK);
}

TEST(FlashGMMClustering, WarnsOnceAboutFewRows) {
    const auto x = make_blobs(600, 4, 5, 2);
    faiss::IndexFlatL2 index(4);
    faiss::ClusteringParameters cp; // advises 39 rows a centroid
    cp.nredo = 3;
    FlashGMMClustering clustering(4, 50, cp);
    testing::internal::CaptureStderr();
    testing::internal::CaptureStdout();
    clustering.train(600, x.data(), index);
    const std::string warning = testing::internal::GetCapturedStderr();
    EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
    EXPECT_CONTAINS(warning, "mixture of 50 components on 600 rows");
    EXPECT_CONTAINS(warning, "1950");
    EXPECT_EQ(warning.find("WARNING"), warning.rfind("WARNING"));
    clustering.min_points_per_centroid = 0;
    testing::internal::CaptureStderr();
    clustering.train(600, x.data(), index);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(FlashGMMClustering, VerbosePrintsIterations) {
    const auto x = blobs();
    auto cp = quiet();
    cp.niter = 3;
    cp.verbose = true;
    FlashGMMClustering clustering(kD, kK, cp);
    faiss::IndexFlatL2 index(kD);
    testing::internal::CaptureStdout();
    clustering.train(kN, x.data(), index);
    const std::string text = testing::internal::GetCapturedStdout();
    EXPECT_CONTAINS(text, "mixture of 20 components to 2000 rows");
    EXPECT_CONTAINS(text, "Iteration 2");
    EXPECT_CONTAINS(text, "log-likelihood");
}

TEST(FlashGMMClustering, EncodedRowsTrainTheMixtureToo) {
    const auto x = blobs();
    auto cp = quiet();
    cp.niter = 5;
    faiss::IndexScalarQuantizer codec(
            kD, faiss::ScalarQuantizer::QT_8bit, faiss::METRIC_L2);
    codec.train(kN, x.data());
    std::vector<uint8_t> codes(kN * codec.sa_code_size());
    codec.sa_encode(kN, x.data(), codes.data());
    std::vector<float> decoded(kN * kD);
    codec.sa_decode(kN, codes.data(), decoded.data());

    faiss::IndexFlatL2 index(kD);
    FlashGMMClustering expected(kD, kK, cp);
    expected.train(kN, decoded.data(), index);
    for (const size_t block : {size_t(1), size_t(37), size_t(32768)}) {
        cp.decode_block_size = block;
        FlashGMMClustering encoded(kD, kK, cp);
        encoded.train_encoded(kN, codes.data(), &codec, index);
        EXPECT_EQ(encoded.centroids, expected.centroids);
        EXPECT_EQ(encoded.mixture.variances, expected.mixture.variances);
    }
    // Without a codec the bytes are floats.
    FlashGMMClustering raw(kD, kK, cp);
    raw.train_encoded(
            kN,
            reinterpret_cast<const uint8_t*>(decoded.data()),
            nullptr,
            index);
    EXPECT_EQ(raw.centroids, expected.centroids);
}

TEST(FlashGMMClustering, RowTypesDoNotMatterBitForBit) {
    std::vector<float> x = blobs();
    std::vector<uint8_t> bytes;
    std::vector<uint16_t> halves;
    for (float& v : x) {
        v = std::clamp(std::round(100 + 10 * v), 0.0f, 255.0f);
        bytes.push_back(uint8_t(v));
        halves.push_back(float_to_half(v));
    }
    const auto cp = quiet();
    FlashGMMClustering expected(kD, kK, cp);
    faiss::IndexFlatL2 index(kD);
    expected.train(kN, x.data(), index);
    for (const RowView rows :
         {RowView(bytes.data(), RowType::uint8),
          RowView(halves.data(), RowType::float16)}) {
        FlashGMMClustering typed(kD, kK, cp);
        typed.train(kN, rows, index);
        EXPECT_EQ(typed.centroids, expected.centroids);
    }
    // Codes that are such numbers are read as they are.
    faiss::IndexScalarQuantizer direct(
            kD, faiss::ScalarQuantizer::QT_8bit_direct);
    faiss::IndexScalarQuantizer half(kD, faiss::ScalarQuantizer::QT_fp16);
    for (const auto& [codec, codes] :
         {std::pair<faiss::Index*, const void*>{&direct, bytes.data()},
          {&half, halves.data()}}) {
        FlashGMMClustering encoded(kD, kK, cp);
        encoded.train_encoded(
                kN, static_cast<const uint8_t*>(codes), codec, index);
        EXPECT_EQ(encoded.centroids, expected.centroids);
    }
}

TEST(FlashGMMClustering, IntegerWeightsAreRepeatedRows) {
    const auto x = blobs();
    std::vector<float> w(kN), repeated;
    for (int i = 0; i < kN; i++) {
        w[i] = float(1 + i % 3);
        for (int r = 0; r < 1 + i % 3; r++) {
            repeated.insert(
                    repeated.end(),
                    x.begin() + i * kD,
                    x.begin() + (i + 1) * kD);
        }
    }
    auto cp = quiet();
    cp.niter = 10;
    faiss::IndexFlatL2 a(kD), b(kD);
    FlashGMMClustering weighted(kD, kK, cp), plain(kD, kK, cp);
    weighted.centroids.assign(x.begin(), x.begin() + kK * kD);
    plain.centroids = weighted.centroids;
    weighted.train(kN, x.data(), a, w.data());
    plain.train(repeated.size() / kD, repeated.data(), b);
    EXPECT_NEAR(
            weighted.em_stats.back().log_likelihood,
            plain.em_stats.back().log_likelihood,
            1e-3);
    EXPECT_NEAR(
            weighted.iteration_stats.back().obj /
                    plain.iteration_stats.back().obj,
            1,
            1e-3);
}

TEST(FlashGMMClustering, AssignReturnsResponsibilities) {
    const auto x = blobs();
    FlashGMMClustering clustering(kD, kK, quiet());
    faiss::IndexFlatL2 index(kD);
    clustering.train(kN, x.data(), index);
    std::vector<idx_t> ids(kN * kK);
    std::vector<float> scores(kN * kK), z(kN);
    clustering.assign(kN, x.data(), kK, ids.data(), scores.data(), z.data());
    for (int i = 0; i < kN; i++) {
        double sum = 0;
        for (int j = 0; j < kK; j++) {
            const int at = i * kK + j;
            sum += std::exp(double(scores[at]) - z[i]);
            if (j > 0) {
                ASSERT_LE(scores[at], scores[at - 1]);
            }
        }
        ASSERT_NEAR(sum, 1, 1e-4);
    }
    std::vector<idx_t> best(kN);
    std::vector<float> best_scores(kN);
    clustering.assign(kN, x.data(), 1, best.data(), best_scores.data());
    for (int i = 0; i < kN; i++) {
        ASSERT_EQ(best_scores[i], scores[i * kK]);
    }
}

TEST(FlashGMMClustering, RanksTheSecondListWhereItsPosteriorUnderflows) {
    // Tight blobs in 768 dimensions: the second responsibility is 0 in fp32.
    const int d = 768, k = 4;
    auto x = make_blobs(400, d, k, 20);
    FlashGMMClustering clustering(d, k, quiet());
    faiss::IndexFlatL2 index(d);
    clustering.train(400, x.data(), index);
    std::vector<idx_t> ids(800), nearest(800);
    std::vector<float> scores(800), z(400), distances(800);
    clustering.assign(400, x.data(), 2, ids.data(), scores.data(), z.data());
    index.search(400, x.data(), 2, distances.data(), nearest.data());
    int agree = 0;
    for (int i = 0; i < 400; i++) {
        EXPECT_EQ(std::exp(scores[2 * i + 1] - z[i]), 0);
        EXPECT_TRUE(std::isfinite(scores[2 * i + 1]));
        EXPECT_NE(ids[2 * i + 1], ids[2 * i]);
        agree += ids[2 * i + 1] == nearest[2 * i + 1];
    }
    EXPECT_GE(agree, 360);
}

TEST(FlashGMMClustering, BadInputThrowsAndChangesNothing) {
    auto x = blobs();
    faiss::IndexFlatL2 index(kD);
    FlashGMMClustering clustering(kD, kK, quiet());
    clustering.train(kN, x.data(), index);
    const std::vector<float> centroids = clustering.centroids;
    const size_t stats = clustering.em_stats.size();

    const auto message = [&](auto&& f) { return faiss_message_of(f); };
    EXPECT_CONTAINS(
            message([&] { clustering.train(5, x.data(), index); }), "n = 5");
    EXPECT_CONTAINS(
            message([&] { clustering.train(5, x.data(), index); }), "k = 20");
    EXPECT_CONTAINS(
            message([&] { clustering.train(kN, nullptr, index); }), "null");
    faiss::IndexFlatL2 narrow(5);
    EXPECT_CONTAINS(
            message([&] { clustering.train(kN, x.data(), narrow); }),
            "index of dimension 5 for a clustering of dimension 12");
    FlashGMMClustering none(kD, 0, quiet());
    EXPECT_CONTAINS(message([&] { none.train(kN, x.data(), index); }), "k = 0");
    std::vector<float> w(kN, 1.0f);
    w[7] = -1;
    EXPECT_CONTAINS(
            message([&] { clustering.train(kN, x.data(), index, w.data()); }),
            "row 7 is -1");
    x[7 * kD + 2] = NAN;
    EXPECT_CONTAINS(
            message([&] { clustering.train(kN, x.data(), index); }),
            "row 7 has nan in column 2");
    faiss::IndexScalarQuantizer codec(7, faiss::ScalarQuantizer::QT_8bit);
    EXPECT_CONTAINS(
            message([&] {
                clustering.train_encoded(kN, nullptr, &codec, index);
            }),
            "codec of dimension 7");
    clustering.centroids.resize(kK * kD + kD);
    EXPECT_CONTAINS(
            message([&] { clustering.train(kN, x.data(), index); }),
            "initial centroids");
    clustering.centroids = centroids;

    EXPECT_EQ(clustering.em_stats.size(), stats);
    EXPECT_EQ(index.ntotal, kK);
    std::vector<float> stored(kK * kD);
    index.reconstruct_n(0, kK, stored.data());
    EXPECT_EQ(stored, centroids);
    x[7 * kD + 2] = 0;
    clustering.train(kN, x.data(), index); // still of use
    EXPECT_CONTAINS(
            message([] {
                idx_t id;
                float score;
                const float row[kD] = {};
                FlashGMMClustering(kD, kK).assign(1, row, 1, &id, &score);
            }),
            "not trained");
}

/// Asks for a stop after a while.
struct TimeoutCallback : faiss::InterruptCallback {
    std::chrono::steady_clock::time_point start =
            std::chrono::steady_clock::now();
    double seconds;
    explicit TimeoutCallback(double seconds) : seconds(seconds) {}
    bool want_interrupt() override {
        return std::chrono::duration<double>(
                       std::chrono::steady_clock::now() - start)
                       .count() > seconds;
    }
};

TEST(FlashGMMClustering, HonoursTheInterruptCallback) {
    const auto x = make_blobs(20000, 32, 50, 1);
    auto cp = quiet();
    cp.niter = 1000000;
    FlashGMMClustering clustering(32, 100, cp);
    faiss::IndexFlatL2 index(32);
    faiss::InterruptCallback::instance = std::make_unique<TimeoutCallback>(0.1);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THROW(
            clustering.train(20000, x.data(), index), faiss::FaissException);
    const double seconds = std::chrono::duration<double>(
                                   std::chrono::steady_clock::now() - start)
                                   .count();
    faiss::InterruptCallback::clear_instance();
    EXPECT_LT(seconds, 20); // and not the hours of a million iterations
    EXPECT_EQ(index.ntotal, 0);
    clustering.niter = 2;
    clustering.train(20000, x.data(), index);
    EXPECT_EQ(index.ntotal, 100);
}

TEST(FlashGMMClustering, ExceptionsOfTheProgressCallbackReachTheCaller) {
    const auto x = blobs();
    FlashGMMClustering clustering(kD, kK, quiet());
    faiss::IndexFlatL2 index(kD);
    clustering.gmm.progress = [](const Progress&) {
        throw std::runtime_error("stop it");
    };
    EXPECT_THROW(clustering.train(kN, x.data(), index), std::runtime_error);
    EXPECT_EQ(index.ntotal, 0);
    EXPECT_TRUE(clustering.centroids.empty());
}

TEST(FlashGMMClustering, ThreadsDoNotMatterBitForBit) {
    const auto x = blobs();
    auto cp = quiet();
    cp.niter = 6;
    const int threads = omp_get_max_threads();
    std::vector<float> expected;
    for (const int t : {1, 2, 4}) {
        omp_set_num_threads(t);
        FlashGMMClustering clustering(kD, kK, cp);
        faiss::IndexFlatL2 index(kD);
        clustering.train(kN, x.data(), index);
        if (expected.empty()) {
            expected = clustering.centroids;
        }
        EXPECT_EQ(clustering.centroids, expected) << t;
    }
    omp_set_num_threads(threads);
}

} // namespace
