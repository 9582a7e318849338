#include <faiss_flashgmm/UniqueBuffer.h>

#if FAISS_FLASHGMM_HAS_SEARCH1

#include <algorithm>
#include <map>
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

/// As a scanner of FAISS hands them over.
void scan(const Results& entries, bool similarity, UniqueBuffer& buffer) {
    float threshold = buffer.threshold;
    for (auto [distance, id] : entries) {
        if ((similarity ? distance > threshold : distance < threshold) &&
            buffer.add_result(distance, id)) {
            threshold = buffer.threshold;
        }
    }
}

TEST(UniqueBuffer, KeepsTheBestDistanceOfEachOfTheBestIds) {
    for (size_t k : {1, 2, 10, 100, 3000}) {
        for (int variant = 0; variant < 4; variant++) {
            const bool differ = variant & 1, similarity = variant & 2;
            UniqueBuffer buffer(k, 5000, similarity);
            for (unsigned seed = 0; seed < 3; seed++) { // queries, one buffer
                const Results entries = random_entries(2000, differ, seed);
                std::map<idx_t, float> best;
                for (auto [distance, id] : entries) {
                    auto [entry, is_new] = best.emplace(id, distance);
                    entry->second = similarity
                            ? std::max(entry->second, distance)
                            : std::min(entry->second, distance);
                }
                std::vector<float> expected(
                        k,
                        similarity ? std::numeric_limits<float>::lowest()
                                   : std::numeric_limits<float>::max());
                std::vector<float> sorted;
                for (auto [id, distance] : best) {
                    sorted.push_back(similarity ? -distance : distance);
                }
                std::sort(sorted.begin(), sorted.end());
                for (size_t i = 0; i < std::min(k, sorted.size()); i++) {
                    expected[i] = similarity ? -sorted[i] : sorted[i];
                }

                buffer.begin();
                scan(entries, similarity, buffer);
                std::vector<float> distances(k);
                std::vector<idx_t> labels(k);
                buffer.end(distances.data(), labels.data());

                EXPECT_EQ(distances, expected) << k << " " << variant;
                std::map<idx_t, float> found;
                for (size_t i = 0; i < k && labels[i] != -1; i++) {
                    found[labels[i]] = distances[i];
                    EXPECT_EQ(best.at(labels[i]), distances[i]);
                }
                EXPECT_EQ(found.size(), std::min(k, best.size()));
            }
        }
    }
}

TEST(UniqueBuffer, RepeatsOfEqualDistanceTakeNoRoom) {
    const size_t k = 4;
    UniqueBuffer buffer(k, 1000, false);
    buffer.begin();
    for (int i = 0; i < 1000; i++) {
        EXPECT_FALSE(buffer.add_result(5, 7));
    }
    buffer.add_result(3, 8);
    float distances[k];
    idx_t labels[k];
    buffer.end(distances, labels);
    EXPECT_EQ(
            std::vector<idx_t>(labels, labels + k),
            (std::vector<idx_t>{8, 7, -1, -1}));
}

} // namespace
} // namespace faiss_flashgmm

#endif
