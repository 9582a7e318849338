#include <faiss_flashgmm/UniqueBest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace faiss_flashgmm {
namespace {

using Entries = std::vector<std::pair<uint16_t, idx_t>>;

/// Entries in random order, an id up to three times.
Entries random_entries(
        size_t n_ids,
        unsigned losses,
        bool copies_differ,
        unsigned seed) {
    std::mt19937 random(seed);
    Entries entries;
    for (size_t i = 0; i < n_ids; i++) {
        const idx_t id = (idx_t(random()) << 20) - (idx_t(1) << 50);
        const uint16_t loss = random() % losses;
        for (int copies = 1 + random() % 3; copies > 0; copies--) {
            entries.emplace_back(
                    copies_differ ? uint16_t(random() % losses) : loss, id);
        }
    }
    std::shuffle(entries.begin(), entries.end(), random);
    return entries;
}

/// Adds the entries of all queries by turns, as lists come up, and checks what
/// is best.
template <class Best>
void expect_keeps_the_best(const std::vector<Entries>& queries, size_t k) {
    Best best(queries.size(), k);
    for (size_t i = 0;; i++) {
        bool any = false;
        for (size_t q = 0; q < queries.size(); q++) {
            if (i < queries[q].size()) {
                any = true;
                const auto [loss, id] = queries[q][i];
                if (loss < best.threshold(q)) {
                    best.add(q, loss, id);
                }
            }
        }
        if (!any) {
            break;
        }
    }
    for (size_t q = 0; q < queries.size(); q++) {
        std::map<idx_t, uint16_t> least;
        for (auto [loss, id] : queries[q]) {
            auto [entry, is_new] = least.emplace(id, loss);
            entry->second = std::min(entry->second, loss);
        }
        std::vector<uint16_t> expected;
        for (auto [id, loss] : least) {
            expected.push_back(loss);
        }
        std::sort(expected.begin(), expected.end());
        expected.resize(std::min(k, expected.size()));

        const UniqueBest found = best.best(q);
        ASSERT_EQ(
                std::vector(found.losses.begin(), found.losses.end()),
                expected);
        std::map<idx_t, uint16_t> different;
        for (size_t i = 0; i < found.ids.size(); i++) {
            different[found.ids[i]] = found.losses[i];
            ASSERT_EQ(found.losses[i], least.at(found.ids[i]));
        }
        ASSERT_EQ(different.size(), expected.size());
    }
}

TEST(UniqueBest, KeepsTheLeastLossOfEachOfTheBestIds) {
    for (const size_t k : {1, 2, 10, 16, 17, 100, 1000}) {
        for (const unsigned losses : {1u, 3u, 100u, 1024u, 1025u, 65535u}) {
            for (const bool copies_differ : {false, true}) {
                SCOPED_TRACE(testing::Message() << k << " of " << losses);
                std::vector<Entries> queries(1);
                for (const size_t n_ids : {1, 5, 300, 3000}) {
                    queries.push_back(random_entries(
                            n_ids, losses, copies_differ, k + n_ids));
                }
                expect_keeps_the_best<SortedBest>(queries, k);
                expect_keeps_the_best<BufferedBest>(queries, k);
            }
        }
    }
}

TEST(UniqueBest, RepeatsTakeNoRoom) {
    BufferedBest best(1, 2);
    for (int i = 0; i < 1000; i++) {
        best.add(0, 5, 7);
    }
    EXPECT_EQ(best.threshold(0), kNoThreshold);
    best.add(0, 6, 8);
    EXPECT_EQ(best.best(0).ids.size(), 2u);
    EXPECT_EQ(best.threshold(0), 6);
}

} // namespace
} // namespace faiss_flashgmm
