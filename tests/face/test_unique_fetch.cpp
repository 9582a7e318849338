#include <faiss_flashgmm/unique_fetch.h>

#include <algorithm>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include <faiss/IndexFlat.h>
#include <faiss/IndexIVFFlat.h>
#include <faiss/IndexIVFPQFastScan.h>

namespace faiss_flashgmm {
namespace {

constexpr idx_t kVectors = 400;

/// Entries of an index as each query ranks them: the first `n_double` vectors
/// twice, the others once.
struct Ranking {
    idx_t n_double;
    idx_t entries_fetched = 0;
    std::vector<int> times; ///< that each query was searched

    Ranking(idx_t n, idx_t n_double) : n_double(n_double), times(n) {}

    idx_t n_entries() const {
        return kVectors + n_double;
    }

    idx_t id(idx_t query, idx_t rank) const {
        return query * 1000 +
                (rank < 2 * n_double ? rank / 2 : rank - n_double);
    }

    void fetch(
            idx_t i0,
            idx_t count,
            idx_t k,
            float* distances,
            idx_t* labels,
            bool again) {
        entries_fetched += count * k;
        for (idx_t i = 0; i < count; i++) {
            EXPECT_EQ(times[i0 + i]++, again) << i0 + i;
            for (idx_t j = 0; j < k; j++) {
                labels[i * k + j] = j < n_entries() ? id(i0 + i, j) : -1;
                distances[i * k + j] = float(j);
            }
        }
    }

    /// Checks that each query finds its k first vectors.
    void search(const faiss::IndexIVF& ivf, idx_t k) {
        const idx_t n = times.size();
        std::vector<float> distances(n * k);
        std::vector<idx_t> labels(n * k);
        fetch_unique(
                ivf,
                {size_t(kVectors), size_t(n_double), 2, -1},
                false,
                n,
                k,
                distances.data(),
                labels.data(),
                [&](auto... arguments) { fetch(arguments...); });
        for (idx_t i = 0; i < n; i++) {
            for (idx_t j = 0; j < k; j++) {
                ASSERT_EQ(labels[i * k + j], j < kVectors ? i * 1000 + j : -1)
                        << "query " << i;
                if (j < kVectors) {
                    ASSERT_EQ(
                            distances[i * k + j],
                            j < n_double ? 2 * j : j + n_double);
                }
            }
        }
    }
};

class UniqueFetch : public ::testing::Test {
   protected:
    faiss::IndexFlatL2 quantizer{8};
    faiss::IndexIVFFlat flat{&quantizer, 8, 4};
    faiss::IndexIVFPQFastScan fast_scan{&quantizer, 8, 4, 4, 4};
};

TEST_F(UniqueFetch, FindsTheFirstVectorsWhereverTheCopiesAre) {
    for (const faiss::IndexIVF* ivf :
         {(faiss::IndexIVF*)&flat, (faiss::IndexIVF*)&fast_scan}) {
        for (idx_t n : {0, 1, 127, 128, 2500}) {
            for (idx_t n_double : {1, 20, 200, 400}) {
                for (idx_t k : {1, 10, 100, 399, 401, 1000}) {
                    if (n * k < 300000) {
                        Ranking(n, n_double).search(*ivf, k);
                    }
                }
            }
        }
    }
}

TEST_F(UniqueFetch, LearnsHowManyEntriesAreNeeded) {
    // All vectors near the queries have two entries, few others do: the first
    // guess is too low.
    Ranking near(100000, 20);
    near.search(flat, 10);
    const idx_t n_again = std::count(near.times.begin(), near.times.end(), 2);
    EXPECT_GT(n_again, 0);
    EXPECT_LT(n_again, 100000);
    EXPECT_EQ(near.times.back(), 1);
}

} // namespace
} // namespace faiss_flashgmm
