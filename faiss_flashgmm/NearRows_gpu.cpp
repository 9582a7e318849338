#include <faiss_flashgmm/NearRows.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <faiss/IndexFlat.h>
#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/faiss_errors.h>
#include <faiss_flashgmm/gpu/CudaBackend.h>
#include <faiss_flashgmm/gpu/NearestRows.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/ParallelGuard.h>

namespace faiss_flashgmm {

namespace {

/// Pairs of rows, and of rows and lists, that are worth the copies to the
/// device: some of them are left out on the CPU.
constexpr double kEnoughPairs = 1 << 30;
constexpr double kEnoughLists = 1 << 24;
/// Rows whose distances are held at once.
constexpr idx_t kHeldRows = 1 << 17;
/// Rows that a thread gets at once.
constexpr idx_t kBlock = 1024;

class NearGpuRows : public NearRows {
   public:
    NearGpuRows(idx_t n, idx_t d, const float* x, bool inner_product)
            : d_(d), rows_({}, n, d, x, inner_product) {}

    void nearest(
            idx_t n,
            const float* x,
            int k,
            const idx_t* self,
            const VisitDistances& visit) override {
        std::vector<float> distances(std::min(n, kHeldRows) * k);
        for (idx_t s0 = 0; s0 < n; s0 += kHeldRows) {
            const idx_t count = std::min(kHeldRows, n - s0);
            with_faiss_errors([&] {
                rows_.nearest(
                        count,
                        x + s0 * d_,
                        k,
                        self ? self + s0 : nullptr,
                        distances.data(),
                        nullptr);
            });
            for_blocks(count, [&](idx_t first, idx_t size) {
                std::vector<std::span<const float>> found(size);
                for (idx_t i = 0; i < size; i++) {
                    const float* of_row = &distances[(first + i) * k];
                    found[i] = {
                            of_row, std::find(of_row, of_row + k, INFINITY)};
                }
                visit(s0 + first, found);
            });
        }
    }

    void within(
            idx_t n,
            const float* x,
            const float* radii,
            const VisitNear& visit) override {
        const auto visit_rows = [&](idx_t at, const auto& rows) {
            for_blocks(rows.size(), [&](idx_t first, idx_t size) {
                std::vector<std::vector<Near>> near(size);
                for (idx_t i = 0; i < size; i++) {
                    for (const NearestRows::Near& y : rows[first + i]) {
                        near[i].push_back({y.base, y.distance});
                    }
                }
                visit(at + first,
                      std::vector<std::span<const Near>>(
                              near.begin(), near.end()));
            });
        };
        with_faiss_errors([&] { rows_.within(n, x, radii, visit_rows); });
    }

   private:
    /// Calls block(first row, number of rows) in parallel.
    template <class Block>
    static void for_blocks(idx_t n, const Block& block) {
        ParallelGuard guard;
#pragma omp parallel for schedule(dynamic)
        for (idx_t first = 0; first < n; first += kBlock) {
            guard.run([&] { block(first, std::min(kBlock, n - first)); });
        }
        guard.rethrow();
    }

    const idx_t d_;
    NearestRows rows_;
};

bool inner_product(const faiss::Index& quantizer) {
    return quantizer.metric_type == faiss::METRIC_INNER_PRODUCT;
}

/// Whether the GPU can do it, and does it sooner than the CPU.
bool is_worth_it(idx_t n_base, idx_t n, idx_t k, double enough_pairs) {
    return double(n_base) * double(n) >= enough_pairs &&
            n_base <= NearestRows::kMostRows &&
            k <= NearestRows::kMostNeighbors &&
            CudaBackend::why_unavailable().empty();
}

} // namespace

std::unique_ptr<NearRows> near_rows_on_gpu(
        const faiss::Index& quantizer,
        const NearRowsOptions& options,
        idx_t n,
        const float* x) {
    const bool automatic = options.search == NeighborSearch::automatic;
    if (automatic && !is_worth_it(n, options.rows, options.k, kEnoughPairs)) {
        return nullptr;
    }
    std::unique_ptr<NearRows> near;
    with_faiss_errors([&] {
        try {
            near = std::make_unique<NearGpuRows>(
                    n, quantizer.d, x, inner_product(quantizer));
        } catch (const OutOfMemory&) {
            if (!automatic) {
                throw;
            }
        }
    });
    return near;
}

bool probing_order_on_gpu(
        const faiss::Index& quantizer,
        NeighborSearch search,
        idx_t size,
        idx_t n,
        const float* x,
        idx_t* order) {
    const auto* flat = dynamic_cast<const faiss::IndexFlat*>(&quantizer);
    if (!flat || size > NearestRows::kMostNeighbors ||
        (search == NeighborSearch::automatic &&
         !is_worth_it(flat->ntotal, n, size, kEnoughLists))) {
        return false;
    }
    std::vector<float> centroids(flat->ntotal * flat->d);
    flat->reconstruct_n(0, flat->ntotal, centroids.data());
    with_faiss_errors([&] {
        NearestRows(
                {},
                flat->ntotal,
                flat->d,
                centroids.data(),
                inner_product(quantizer))
                .nearest(n, x, size, nullptr, nullptr, order);
    });
    return true;
}

} // namespace faiss_flashgmm
