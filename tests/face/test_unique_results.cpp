#include <faiss_flashgmm/unique_results.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>

#include <gtest/gtest.h>

namespace faiss_flashgmm {
namespace {

const auto kSameId = [](idx_t label) { return label; };

TEST(SeenIds, RemembersTheFirstPositionUntilReset) {
    SeenIds seen;
    const idx_t ids[] = {
            0,
            -5,
            std::numeric_limits<idx_t>::max(),
            std::numeric_limits<idx_t>::min(),
            idx_t(1) << 62};
    for (int round = 0; round < 3; round++) {
        seen.reset(5);
        for (size_t i = 0; i < 5; i++) {
            EXPECT_EQ(seen.insert(ids[i], i + round), i + round);
        }
        for (size_t i = 0; i < 5; i++) {
            EXPECT_EQ(seen.insert(ids[i], 99), i + round);
        }
    }
}

TEST(SeenIds, HoldsAsManyAsItWasResetFor) {
    SeenIds seen;
    for (size_t capacity : {1, 2, 3, 1000, 7, 4096}) {
        seen.reset(capacity);
        for (size_t i = 0; i < capacity; i++) {
            ASSERT_EQ(seen.insert(idx_t(i) << 32, i), i);
        }
        for (size_t i = 0; i < capacity; i++) {
            ASSERT_EQ(seen.insert(idx_t(i) << 32, 0), i);
        }
    }
}

TEST(UniqueTopk, KeepsTheFirstOfEachIdAndFillsUp) {
    const float distances_in[] = {1, 2, 2, 3, 4, 5, 9, 9};
    const idx_t labels_in[] = {7, -5, 7, 8, -5, 9, -1, -1};
    SeenIds seen;
    for (size_t k : {1, 3, 4, 6}) {
        std::vector<float> distances(k);
        std::vector<idx_t> labels(k);
        unique_topk(
                8,
                distances_in,
                labels_in,
                kSameId,
                -3.f,
                k,
                distances.data(),
                labels.data(),
                seen);
        const std::vector<float> all_distances = {1, 2, 3, 5, -3, -3};
        const std::vector<idx_t> all_labels = {7, -5, 8, 9, -1, -1};
        EXPECT_TRUE(std::equal(
                distances.begin(), distances.end(), all_distances.begin()));
        EXPECT_TRUE(
                std::equal(labels.begin(), labels.end(), all_labels.begin()));
    }
}

TEST(UniqueTopk, ComparesIdsNotLabels) {
    const float distances_in[] = {1, 2, 3};
    const idx_t labels_in[] = {10, 20, 11}; // 10 and 11 name the id 1
    float distances[3];
    idx_t labels[3];
    SeenIds seen;
    unique_topk(
            3,
            distances_in,
            labels_in,
            [](idx_t label) { return label / 10; },
            0.f,
            3,
            distances,
            labels,
            seen);
    EXPECT_EQ(
            std::vector<idx_t>(labels, labels + 3),
            (std::vector<idx_t>{10, 20, -1}));
}

/// A result of random ids, each up to three times.
void fill(faiss::RangeSearchResult& result, unsigned seed) {
    std::mt19937 random(seed);
    for (size_t i = 0; i < result.nq; i++) {
        result.lims[i] = i % 3 == 1 ? 0 : random() % 60;
    }
    result.do_allocation();
    for (size_t j = 0; j < result.lims[result.nq]; j++) {
        result.labels[j] = idx_t(random() % 30) - 5;
        result.distances[j] = float(random() % 1000);
    }
}

TEST(UniqueRange, KeepsTheBestOfEachIdInPlace) {
    for (bool similarity : {false, true}) {
        faiss::RangeSearchResult result(10);
        fill(result, 3);
        std::vector<std::map<idx_t, float>> expected(10);
        for (size_t i = 0; i < 10; i++) {
            for (size_t j = result.lims[i]; j < result.lims[i + 1]; j++) {
                const float distance = result.distances[j];
                auto [entry, is_new] =
                        expected[i].emplace(result.labels[j], distance);
                entry->second = similarity ? std::max(entry->second, distance)
                                           : std::min(entry->second, distance);
            }
        }
        for (int times = 0; times < 2; times++) {
            unique_range(result, kSameId, similarity);
            EXPECT_EQ(result.lims[0], 0u);
            for (size_t i = 0; i < 10; i++) {
                std::map<idx_t, float> found;
                for (size_t j = result.lims[i]; j < result.lims[i + 1]; j++) {
                    found[result.labels[j]] = result.distances[j];
                }
                EXPECT_EQ(found, expected[i]);
                EXPECT_EQ(found.size(), result.lims[i + 1] - result.lims[i]);
            }
        }
    }
}

} // namespace
} // namespace faiss_flashgmm
