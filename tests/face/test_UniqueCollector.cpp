#include <faiss_flashgmm/UniqueCollector.h>

#if FAISS_FLASHGMM_HAS_SEARCH1

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include <gtest/gtest.h>

namespace faiss_flashgmm {
namespace {

using Results = std::vector<std::pair<float, idx_t>>;

/// Entries in random order, an id up to three times, `differ` says whether with
/// different distances.
Results random_entries(size_t n_ids, bool differ, unsigned seed) {
    std::mt19937 random(seed);
    Results entries;
    for (size_t i = 0; i < n_ids; i++) {
        const idx_t id = idx_t(random()) << 20;
        const float distance = float(random() % 1000);
        for (int copies = 1 + random() % 3; copies > 0; copies--) {
            entries.emplace_back(
                    distance + (differ ? float(random() % 100) : 0.f), id);
        }
    }
    std::shuffle(entries.begin(), entries.end(), random);
    return entries;
}

std::vector<std::unique_ptr<UniqueCollector>> all_collectors(
        size_t k,
        size_t most,
        bool similarity) {
    std::vector<std::unique_ptr<UniqueCollector>> collectors;
    collectors.push_back(std::make_unique<UniqueInsertion>(k, similarity));
    collectors.push_back(std::make_unique<UniqueBuffer>(k, most, similarity));
    return collectors;
}

/// As a scanner of FAISS hands them over, or, if `every`, those too that are
/// beyond the threshold.
void scan(
        const Results& entries,
        bool similarity,
        bool every,
        UniqueCollector& collector) {
    float threshold = collector.threshold;
    for (auto [distance, id] : entries) {
        if ((every ||
             (similarity ? distance > threshold : distance < threshold)) &&
            collector.add_result(distance, id)) {
            threshold = collector.threshold;
        }
    }
}

/// What the collector should find in entries.
void expect_best(
        const Results& entries,
        bool similarity,
        size_t k,
        UniqueCollector& collector) {
    std::map<idx_t, float> best;
    for (auto [distance, id] : entries) {
        auto [entry, is_new] = best.emplace(id, distance);
        entry->second = similarity ? std::max(entry->second, distance)
                                   : std::min(entry->second, distance);
    }
    std::vector<float> expected;
    for (auto [id, distance] : best) {
        expected.push_back(distance);
    }
    std::sort(expected.begin(), expected.end());
    if (similarity) {
        std::reverse(expected.begin(), expected.end());
    }
    expected.resize(
            k,
            similarity ? std::numeric_limits<float>::lowest()
                       : std::numeric_limits<float>::max());

    std::vector<float> distances(k);
    std::vector<idx_t> labels(k);
    collector.end(distances.data(), labels.data());

    EXPECT_EQ(distances, expected);
    std::map<idx_t, float> found;
    for (size_t i = 0; i < k && labels[i] != -1; i++) {
        found[labels[i]] = distances[i];
        EXPECT_EQ(best.at(labels[i]), distances[i]);
    }
    EXPECT_EQ(found.size(), std::min(k, best.size()));
}

TEST(UniqueCollector, KeepsTheBestDistanceOfEachOfTheBestIds) {
    for (size_t k : {1, 2, 10, 100, 3000}) {
        for (int variant = 0; variant < 8; variant++) {
            const bool differ = variant & 1, similarity = variant & 2,
                       every = variant & 4;
            for (const auto& collector : all_collectors(k, 5000, similarity)) {
                SCOPED_TRACE(testing::Message() << k << " " << variant);
                for (unsigned seed = 0; seed < 3; seed++) { // queries
                    const Results entries = random_entries(2000, differ, seed);
                    collector->begin();
                    scan(entries, similarity, every, *collector);
                    expect_best(entries, similarity, k, *collector);
                }
            }
        }
    }
}

TEST(UniqueCollector, RepeatsOfEqualDistanceTakeNoRoom) {
    const size_t k = 4;
    for (const auto& collector : all_collectors(k, 1000, false)) {
        collector->begin();
        for (int i = 0; i < 1000; i++) {
            EXPECT_FALSE(collector->add_result(5, 7));
        }
        collector->add_result(3, 8);
        float distances[k];
        idx_t labels[k];
        collector->end(distances, labels);
        EXPECT_EQ(
                std::vector<idx_t>(labels, labels + k),
                (std::vector<idx_t>{8, 7, -1, -1}));
    }
}

} // namespace
} // namespace faiss_flashgmm

#endif
