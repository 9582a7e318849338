// The limit on the copies: exact for a bulk load, learned for streams.

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include <faiss/IndexFlat.h>
#include <faiss/impl/io.h>

#include <faiss_flashgmm/fields.h>
#include <faiss_flashgmm/index_io.h>
#include <faiss_flashgmm/index_sections.h>

#include "face/multi_assign_cases.h"

namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;

constexpr idx_t kMany = 6000;

const std::vector<float>& many_rows(unsigned seed) {
    static const std::vector<float> rows[] = {
            clustered_rows(kMany, kDim, kLists, 11),
            clustered_rows(kMany, kDim, kLists, 12)};
    return rows[seed];
}

struct InflationTest : ::testing::TestWithParam<AssignPolicy> {
    faiss::IndexFlatL2 quantizer{kDim};
    IndexIVFFlatMultiAssign index{&quantizer, kDim, kLists};

    InflationTest() {
        index.cp.niter = 3;
        index.assigner.policy = GetParam();
        index.assigner.tau = 0;
        index.assigner.max_inflation = 1.3;
        index.assigner.demand_parameters.probes = 4;
        index.assigner.demand_parameters.price_weight = 0; // all that gain
        index.train(kMany, many_rows(0).data());
    }
};

TEST_P(InflationTest, IsExactForABulkLoad) {
    for (int max_entries : {2, 4}) {
        index.reset();
        index.assigner.max_entries = max_entries;
        index.assigner.learn(
                quantizer, index.mixture(), kMany, many_rows(0).data());
        index.add(kMany, many_rows(1).data());
        EXPECT_EQ(index.nentries(), size_t(kMany * 13 / 10));
    }
}

TEST_P(InflationTest, IsKeptWithin5PercentByAStream) {
    for (idx_t i = 0; i < kMany; i += 25) {
        index.add(25, &many_rows(1)[i * kDim]);
    }
    EXPECT_NEAR(index.entries_per_vector(), 1.3, 0.05 * 1.3);
}

TEST_P(InflationTest, StoresTheCopiesOfBestScore) {
    std::vector<idx_t> primary(kMany), extra(kMany), all(kMany);
    std::vector<float> scores(kMany);
    quantizer.assign(kMany, many_rows(1).data(), primary.data());
    const MultiAssign& assigner = index.assigner;
    assigner.extra_lists(
            quantizer,
            index.mixture(),
            kMany,
            many_rows(1).data(),
            primary.data(),
            all.data(),
            scores.data());
    assigner.choose(
            quantizer,
            index.mixture(),
            kMany,
            many_rows(1).data(),
            primary.data(),
            true,
            extra.data());
    float worst_kept = INFINITY, best_left_out = -INFINITY;
    for (idx_t i = 0; i < kMany; i++) {
        if (extra[i] >= 0) {
            ASSERT_EQ(extra[i], all[i]);
            worst_kept = std::min(worst_kept, scores[i]);
        } else {
            best_left_out = std::max(best_left_out, scores[i]);
        }
    }
    EXPECT_GE(worst_kept, best_left_out);
}

TEST_P(InflationTest, EveryVectorFindsItselfInOneProbe) {
    index.assigner.max_entries = 3;
    index.assigner.learn(
            quantizer, index.mixture(), kMany, many_rows(0).data());
    index.add(kMany, many_rows(1).data());
    index.nprobe = 1;
    const Results found = search(index, many_rows(1), 1);
    for (idx_t i = 0; i < kMany; i++) {
        ASSERT_EQ(found.labels[i], i);
    }
}

TEST_P(InflationTest, LearnsTheSameAgain) {
    IndexIVFFlatMultiAssign again(&quantizer, kDim, kLists);
    again.assigner = index.assigner;
    again.assigner.learned.threshold = 17;
    again.set_mixture(index.mixture());
    again.train(kMany, many_rows(0).data());
    EXPECT_EQ(
            again.assigner.learned.threshold, index.assigner.learned.threshold);
    EXPECT_EQ(
            again.assigner.learned.demand.radii,
            index.assigner.learned.demand.radii);
}

TEST_P(InflationTest, OtherSettingsHaveToBeLearned) {
    index.assigner.max_inflation = 1.4;
    EXPECT_NE(
            message_of([&] {
                index.add(1, many_rows(1).data());
            }).find("inflation 1.39"),
            std::string::npos);
    EXPECT_EQ(index.ntotal, 0);
    index.assigner.max_inflation = 1.3;
    index.add(1, many_rows(1).data());
    EXPECT_EQ(index.ntotal, 1);
}

TEST_P(InflationTest, AFileKeepsWhatWasLearned) {
    faiss::VectorIOWriter writer;
    write_index(&index, &writer);
    faiss::VectorIOReader reader;
    reader.data = writer.data;
    const std::unique_ptr<faiss::Index> read = read_index(&reader);
    std::vector<idx_t> wanted(10 * 2), got(10 * 2);
    index.assign_lists(10, many_rows(1).data(), wanted.data());
    dynamic_cast<IVFMultiAssign&>(*read).assign_lists(
            10, many_rows(1).data(), got.data());
    EXPECT_EQ(wanted, got);
}

INSTANTIATE_TEST_SUITE_P(
        Policies,
        InflationTest,
        ::testing::Values(
                AssignPolicy::posterior,
                AssignPolicy::nearest,
                AssignPolicy::air,
                AssignPolicy::soar,
                AssignPolicy::demand),
        [](const auto& info) { return name_of(info.param); });

TEST(KeepBest, KeepsExactlyAsManyWhereScoresAreEqual) {
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<idx_t> primary = {0, 0, 0, -1, 0};
    const std::vector<float> scores = {
            2, 1, 1, 1, 1, -infinity, -infinity, -infinity, 3, 1};
    std::vector<idx_t> extra = {1, 2, 1, 2, 1, -1, -1, -1, 1, 2};
    keep_best(2, 5, primary.data(), 2, scores.data(), extra.data());
    EXPECT_EQ(extra, (std::vector<idx_t>{1, 2, 1, -1, -1, -1, -1, -1, 1, -1}));
}

TEST(Inflation, TrainingNeedsUsableSampleQueries) {
    faiss::IndexFlatL2 quantizer(kDim);
    IndexIVFFlatMultiAssign index(&quantizer, kDim, kLists);
    index.assigner.policy = AssignPolicy::demand;
    EXPECT_NE(message_of([&] { index.add(1, base_rows().data()); }), "");
    index.sample_queries.resize(kDim + 1);
    EXPECT_NE(
            message_of([&] {
                index.train(kRows, base_rows().data());
            }).find("17"),
            std::string::npos);
    index.sample_queries = query_rows();
    index.sample_queries[5] = NAN;
    EXPECT_NE(message_of([&] { index.train(kRows, base_rows().data()); }), "");
    EXPECT_FALSE(index.is_trained);
    index.sample_queries = query_rows();
    index.train(kRows, base_rows().data());
    EXPECT_EQ(
            index.assigner.learned.demand.rows.size(),
            base_rows().size() + query_rows().size());
}

TEST(Inflation, WhatAnOlderRuleLearnedIsDropped) {
    faiss::IndexFlatL2 quantizer(kDim);
    IndexIVFFlatMultiAssign index(&quantizer, kDim, kLists);
    index.assigner.policy = AssignPolicy::demand;
    index.train(kRows, base_rows().data());

    std::vector<Section> sections = sections_of(index);
    ASSERT_EQ(sections.size(), 1u);
    std::string bytes;
    sections[0].record.append_to(bytes);
    const std::string name = "learned.demand_votes";
    bytes.replace(bytes.find(name), name.size(), "learned.demand_other");
    ByteReader reader(bytes);
    sections[0].record = Record::read_from(reader);

    std::unique_ptr<faiss::Index> read =
            std::make_unique<faiss::IndexIVFFlat>(&quantizer, kDim, kLists);
    restore_sections(read, sections);
    EXPECT_TRUE(dynamic_cast<IVFMultiAssign&>(*read)
                        .assigner.learned.demand.empty());
    EXPECT_NE(
            message_of([&] {
                read->add(kRows, base_rows().data());
            }).find("learn()"),
            std::string::npos);
}

} // namespace
} // namespace faiss_flashgmm
