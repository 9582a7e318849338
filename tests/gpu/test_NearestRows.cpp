#include <faiss_flashgmm/gpu/NearestRows.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <faiss_flashgmm/utils/Error.h>

#include "conformance/backend_conformance.h"
#include "device.h"

namespace faiss_flashgmm {
namespace {

using Near = NearestRows::Near;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Normal coordinates about one of some centers.
std::vector<float> clustered(
        int64_t n,
        int64_t d,
        unsigned seed,
        float offset = 0,
        float spread = 3) {
    std::mt19937 centers(99), random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> center(20 * d);
    for (float& v : center) {
        v = offset + spread * normal(centers);
    }
    std::vector<float> x(n * d);
    for (int64_t i = 0; i < n; i++) {
        const int64_t c = random() % 20;
        for (int64_t j = 0; j < d; j++) {
            x[i * d + j] = center[c * d + j] + normal(random);
        }
    }
    return x;
}

struct Found {
    std::vector<float> distances;
    std::vector<int64_t> ids;

    bool operator==(const Found&) const = default;
};

Found find(
        NearestRows& rows,
        int64_t n,
        RowView x,
        int64_t k,
        const int64_t* self = nullptr) {
    Found found;
    found.distances.assign(n * k, NAN);
    found.ids.assign(n * k, -7);
    rows.nearest(n, x, k, self, found.distances.data(), found.ids.data());
    return found;
}

struct Pair {
    double distance;
    double size; ///< what its rounding is relative to
};

Pair distance(const float* a, const float* b, int64_t d, bool inner_product) {
    Pair pair{};
    for (int64_t j = 0; j < d; j++) {
        const double product = double(a[j]) * b[j];
        const double difference = double(a[j]) - b[j];
        pair.distance += inner_product ? -product : difference * difference;
        pair.size +=
                inner_product ? std::abs(product) : difference * difference;
    }
    return pair;
}

/// Exact, for fp64 and the bound that is stated.
void expect_nearest(
        const Found& found,
        int64_t n_base,
        const std::vector<float>& base,
        const std::vector<float>& x,
        int64_t d,
        int64_t k,
        bool inner_product,
        const int64_t* self = nullptr) {
    const int64_t n = int64_t(x.size()) / d;
    const double relative = (double(d) / 32 + 8) * 0x1p-23;
    for (int64_t i = 0; i < n; i++) {
        std::vector<Pair> pairs(n_base);
        std::vector<double> sorted;
        double largest = 0;
        for (int64_t j = 0; j < n_base; j++) {
            pairs[j] = distance(&x[i * d], &base[j * d], d, inner_product);
            if (!self || self[i] != j) {
                sorted.push_back(pairs[j].distance);
                largest = std::max(largest, pairs[j].size);
            }
        }
        std::sort(sorted.begin(), sorted.end());
        std::vector<int64_t> ids(
                found.ids.begin() + i * k, found.ids.begin() + (i + 1) * k);
        for (int64_t r = 0; r < k; r++) {
            const float actual = found.distances[i * k + r];
            if (r >= int64_t(sorted.size())) {
                ASSERT_EQ(actual, kInfinity);
                ASSERT_EQ(ids[r], -1);
                continue;
            }
            ASSERT_GE(ids[r], 0);
            ASSERT_LT(ids[r], n_base);
            const Pair& pair = pairs[ids[r]];
            ASSERT_NEAR(actual, pair.distance, relative * pair.size);
            // Order statistics move no more than what is ordered does.
            const double bound =
                    relative * (inner_product ? largest : sorted[r]);
            ASSERT_NEAR(actual, sorted[r], bound + 1e-35) << "row " << i;
            if (r > 0) {
                ASSERT_TRUE(
                        std::tie(found.distances[i * k + r - 1], ids[r - 1]) <
                        std::tie(actual, ids[r]));
            }
            if (self) {
                ASSERT_NE(ids[r], self[i]);
            }
        }
        std::sort(ids.begin(), ids.end());
        const auto real = std::lower_bound(ids.begin(), ids.end(), 0);
        ASSERT_EQ(std::adjacent_find(real, ids.end()), ids.end());
    }
}

CudaOptions reference() {
    CudaOptions options;
    options.precision = CudaPrecision::reference;
    return options;
}

TEST(NearestRows, IsExactForAnyShapeAndMetric) {
    SKIP_WITHOUT_DEVICE();
    struct Case {
        int64_t n_base, n, d, k;
    };
    for (const Case& c :
         {Case{1, 3, 1, 1},
          {127, 5, 3, 10},
          {1000, 33, 31, 1},
          {1537, 130, 32, 1024},
          {5003, 100, 96, 128},
          {7001, 71, 128, 512},
          {4999, 40, 129, 513},
          {9001, 50, 200, 1024},
          {3001, 30, 960, 100}}) {
        for (const bool inner_product : {false, true}) {
            SCOPED_TRACE(
                    format("%ld x %ld, k %ld, %d",
                           long(c.n_base),
                           long(c.d),
                           long(c.k),
                           int(inner_product)));
            const std::vector<float> base = clustered(c.n_base, c.d, 1);
            const std::vector<float> x = clustered(c.n, c.d, 2);
            NearestRows rows({}, c.n_base, c.d, base.data(), inner_product);
            const Found found = find(rows, c.n, x.data(), c.k);
            expect_nearest(found, c.n_base, base, x, c.d, c.k, inner_product);
            // What is measured decides, not what chooses.
            NearestRows all(
                    reference(), c.n_base, c.d, base.data(), inner_product);
            EXPECT_TRUE(found == find(all, c.n, x.data(), c.k));
        }
    }
}

TEST(NearestRows, LeavesARowItselfOut) {
    SKIP_WITHOUT_DEVICE();
    constexpr int64_t kN = 3000, kD = 40, kK = 20;
    const std::vector<float> base = clustered(kN, kD, 1);
    std::vector<int64_t> self(kN);
    for (int64_t i = 0; i < kN; i++) {
        self[i] = i % 3 == 0 ? -1 : i;
    }
    NearestRows rows({}, kN, kD, base.data(), false);
    const Found found = find(rows, kN, base.data(), kK, self.data());
    const std::vector<float> some(base.begin(), base.begin() + 100 * kD);
    expect_nearest(found, kN, base, some, kD, kK, false, self.data());
    for (int64_t i = 0; i < kN; i++) {
        ASSERT_EQ(found.ids[i * kK] == i, i % 3 == 0);
    }
}

/// Far from the origin, of tiny or huge scale, with outliers, or of clusters
/// that fp16 cannot tell apart: what is chosen is more, the result the same.
TEST(NearestRows, IsExactForDataThatFp16RoundsBadly) {
    SKIP_WITHOUT_DEVICE();
    constexpr int64_t kN = 6000, kQueries = 60, kD = 24, kK = 30;
    std::vector<float> x = clustered(kN, kD, 1);
    const auto changed = [&](auto&& change) {
        std::vector<float> y = x;
        for (size_t i = 0; i < y.size(); i++) {
            change(y[i], i);
        }
        return y;
    };
    for (const std::vector<float>&base : {
                 changed([](float&v, size_t) { v += 1e4f; }),
                 changed([](float&v, size_t) { v *= 1e-12f; }),
                 changed([](float&v, size_t) { v *= 1e12f; }),
                 changed([](float&v, size_t i) { v *= i == 77 ? 1e9f : 1; }),
                 clustered(kN, kD, 1, 0, 1e5f),
         }) {
        for (const bool inner_product : {false, true}) {
            const std::vector<float> queries(
                    base.begin(), base.begin() + kQueries * kD);
            NearestRows rows({}, kN, kD, base.data(), inner_product);
            const Found found = find(rows, kQueries, base.data(), kK);
            expect_nearest(found, kN, base, queries, kD, kK, inner_product);
        }
    }
}

TEST(NearestRows, EqualRowsComeInTheirOrder) {
    SKIP_WITHOUT_DEVICE();
    constexpr int64_t kD = 8, kK = 50;
    // More of them than a row has room for; and each row nine times.
    for (const int64_t n : {20000, 9 * 1000}) {
        const bool all_equal = n == 20000;
        std::vector<float> base(n * kD, 3.0f);
        if (!all_equal) {
            const std::vector<float> once = clustered(1000, kD, 1);
            for (int64_t i = 0; i < n; i++) {
                std::copy_n(&once[i % 1000 * kD], kD, &base[i * kD]);
            }
        }
        NearestRows rows({}, n, kD, base.data(), false);
        const Found found = find(rows, 300, base.data(), kK);
        for (int64_t i = 0; i < 300; i++) {
            for (int64_t r = 0; r < (all_equal ? kK : 9); r++) {
                ASSERT_EQ(found.distances[i * kK + r], 0);
                ASSERT_EQ(found.ids[i * kK + r], all_equal ? r : i + 1000 * r);
            }
        }
    }
}

/// Whatever rows are stored as and wherever, in blocks of any size.
TEST(NearestRows, TypesPlacesAndBlocksChangeNothing) {
    SKIP_WITHOUT_DEVICE();
    constexpr int64_t kN = 4001, kQueries = 1001, kD = 19, kK = 33;
    std::vector<float> base = clustered(kN, kD, 1, 30);
    std::vector<float> x = clustered(kQueries, kD, 2, 30);
    for (std::vector<float>* values : {&base, &x}) {
        for (float& v : *values) {
            v = std::round(std::clamp(v, 0.0f, 127.0f));
        }
    }
    NearestRows rows({}, kN, kD, base.data(), false);
    const Found expected = find(rows, kQueries, x.data(), kK);
    expect_nearest(
            {{expected.distances.begin(), expected.distances.begin() + 9 * kK},
             {expected.ids.begin(), expected.ids.begin() + 9 * kK}},
            kN,
            base,
            {x.begin(), x.begin() + 9 * kD},
            kD,
            kK,
            false);
    for (const RowType type :
         {RowType::float32,
          RowType::float16,
          RowType::bfloat16,
          RowType::int8,
          RowType::uint8}) {
        SCOPED_TRACE(name_of(type));
        const std::vector<std::byte> b = conformance::encode(base, type);
        const std::vector<std::byte> q = conformance::encode(x, type);
        const auto device_b = on_device(b);
        const auto device_q = on_device(q);
        CudaOptions small;
        small.memory_limit = 8 << 20;
        for (const void* from :
             {(const void*)b.data(), (const void*)device_b.get()}) {
            NearestRows typed(small, kN, kD, {from, type}, false);
            for (const void* what :
                 {(const void*)q.data(), (const void*)device_q.get()}) {
                EXPECT_TRUE(
                        find(typed, kQueries, {what, type}, kK) == expected);
            }
            EXPECT_LE(typed.peak_device_bytes(), small.memory_limit);
        }
    }
    // Results on the device, and only one of them.
    const auto ids = on_device(std::vector<int64_t>(kQueries * kK, -7));
    rows.nearest(kQueries, x.data(), kK, nullptr, nullptr, ids.get());
    std::vector<int64_t> host(kQueries * kK);
    FLASHGMM_CUDA(cudaMemcpy(
            host.data(),
            ids.get(),
            host.size() * sizeof(int64_t),
            cudaMemcpyDeviceToHost));
    EXPECT_EQ(host, expected.ids);
}

std::vector<std::vector<Near>> find_within(
        NearestRows& rows,
        int64_t n,
        const float* x,
        const std::vector<float>& radii) {
    std::vector<std::vector<Near>> all;
    rows.within(
            n,
            x,
            radii.data(),
            [&](int64_t first, std::span<const std::vector<Near>> block) {
                EXPECT_EQ(first, int64_t(all.size()));
                all.insert(all.end(), block.begin(), block.end());
            });
    EXPECT_EQ(int64_t(all.size()), n);
    return all;
}

TEST(NearestRows, FindsAllWithinTheRadiiOfTheBase) {
    SKIP_WITHOUT_DEVICE();
    for (const auto& [n_base, n, d] :
         {std::tuple<int64_t, int64_t, int64_t>{1, 2, 1},
          {3001, 500, 17},
          {5000, 1000, 128}}) {
        for (const bool inner_product : {false, true}) {
            const std::vector<float> base = clustered(n_base, d, 1);
            const std::vector<float> x = clustered(n, d, 2);
            // Of all sizes: some for none of the rows, some for all of them.
            std::vector<float> radii(n_base);
            std::mt19937 random(4);
            for (int64_t j = 0; j < n_base; j++) {
                radii[j] = j % 10 == 0 ? -kInfinity
                        : j % 101 == 5 ? kInfinity
                                       : float(distance(
                                                       &base[j * d],
                                                       &x[random() % n * d],
                                                       d,
                                                       inner_product)
                                                       .distance);
            }
            for (const CudaOptions& options : {CudaOptions(), reference()}) {
                NearestRows rows(
                        options, n_base, d, base.data(), inner_product);
                const auto found = find_within(rows, n, x.data(), radii);
                const double relative = (double(d) / 32 + 8) * 0x1p-23;
                int64_t total = 0;
                for (int64_t i = 0; i < n; i++) {
                    std::vector<bool> is_near(n_base, false);
                    int64_t last = -1;
                    for (const Near& y : found[i]) {
                        ASSERT_GT(int64_t(y.base), last);
                        last = y.base;
                        is_near[y.base] = true;
                        ASSERT_LE(y.distance, radii[y.base]);
                        total++;
                    }
                    for (int64_t j = 0; j < n_base; j++) {
                        const Pair pair = distance(
                                &x[i * d], &base[j * d], d, inner_product);
                        if (std::abs(pair.distance - radii[j]) >
                            relative * pair.size) {
                            ASSERT_EQ(is_near[j], pair.distance < radii[j])
                                    << i << " " << j;
                        }
                    }
                }
                EXPECT_TRUE(total > 0 || n_base == 1);
            }
        }
    }
}

/// More near rows than there is room for at once.
TEST(NearestRows, FindsThousandsWithinTheirRadii) {
    SKIP_WITHOUT_DEVICE();
    constexpr int64_t kN = 30000, kQueries = 700, kD = 5;
    const std::vector<float> base = clustered(kN, kD, 1);
    const std::vector<float> radii(kN, 1e6f);
    NearestRows rows({}, kN, kD, base.data(), false);
    for (const std::vector<Near>& near :
         find_within(rows, kQueries, base.data(), radii)) {
        ASSERT_EQ(near.size(), size_t(kN));
        ASSERT_EQ(near[kN / 2].base, uint32_t(kN / 2));
    }
}

std::string message_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

TEST(NearestRows, RefusesWhatItCannotDo) {
    SKIP_WITHOUT_DEVICE();
    constexpr int64_t kN = 2000, kD = 4;
    std::vector<float> base = clustered(kN, kD, 1);
    const auto make = [&](CudaOptions options, int64_t n, int64_t d) {
        return message_of(
                [&] { NearestRows(options, n, d, base.data(), false); });
    };
    CudaOptions options;
    EXPECT_EQ(make(options, kN, kD), "");
    EXPECT_NE(make(options, 0, kD), "");
    EXPECT_NE(make(options, NearestRows::kMostRows + 1, kD), "");
    EXPECT_NE(make(options, kN, 0), "");
    options.devices = {0, 0};
    EXPECT_NE(make(options, kN, kD), "");
    options.devices = {77};
    EXPECT_NE(make(options, kN, kD).find("77"), std::string::npos);

    NearestRows rows({}, kN, kD, base.data(), false);
    std::vector<float> out(2 * 2000);
    for (const int64_t k : {int64_t(0), NearestRows::kMostNeighbors + 1}) {
        EXPECT_NE(
                message_of([&] {
                    rows.nearest(
                            2, base.data(), k, nullptr, out.data(), nullptr);
                }).find(std::to_string(k)),
                std::string::npos);
    }
    const float kept = std::exchange(base[5], kInfinity);
    EXPECT_NE(make({}, kN, kD), "");
    base[5] = kept;
    rows.nearest(2, base.data(), 1, nullptr, out.data(), nullptr);
    EXPECT_EQ(out[1], 0);
}

TEST(NearestRows, RowsThatAreNoNumbersHaveNoNeighbors) {
    SKIP_WITHOUT_DEVICE();
    constexpr int64_t kN = 3000, kQueries = 70, kD = 36, kK = 5;
    const std::vector<float> base = clustered(kN, kD, 1);
    std::vector<float> x = clustered(kQueries, kD, 2);
    for (const bool inner_product : {false, true}) {
        NearestRows rows({}, kN, kD, base.data(), inner_product);
        Found expected = find(rows, kQueries, x.data(), kK);
        std::vector<float> bad = x;
        bad[3 * kD + 35] = NAN;
        std::fill_n(&expected.distances[3 * kK], kK, kInfinity);
        std::fill_n(&expected.ids[3 * kK], kK, -1);
        EXPECT_TRUE(find(rows, kQueries, bad.data(), kK) == expected);
        const std::vector<float> radii(
                kN, inner_product ? -1.0f : float(4 * kD));
        auto near = find_within(rows, kQueries, x.data(), radii);
        EXPECT_FALSE(near[3].empty());
        near[3].clear();
        const auto found = find_within(rows, kQueries, bad.data(), radii);
        for (int64_t i = 0; i < kQueries; i++) {
            EXPECT_EQ(found[i].size(), near[i].size()) << i;
        }
    }
}

TEST(NearestRows, SaysWhatMemoryIsMissing) {
    SKIP_WITHOUT_DEVICE();
    constexpr int64_t kN = 20000, kD = 64;
    const std::vector<float> base = clustered(kN, kD, 1);
    CudaOptions options;
    for (const int64_t limit : {1 << 20, 6 << 20, 8 << 20}) {
        options.memory_limit = limit;
        EXPECT_THROW(
                {
                    NearestRows rows(options, kN, kD, base.data(), false);
                    std::vector<float> out(kN * 200);
                    rows.nearest(
                            kN, base.data(), 200, nullptr, out.data(), nullptr);
                },
                OutOfMemory)
                << limit;
    }
}

} // namespace
} // namespace faiss_flashgmm
