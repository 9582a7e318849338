#include <faiss_flashgmm/NearRows.h>

#include <algorithm>
#include <limits>
#include <utility>

#include <omp.h>

#include <faiss/impl/AuxIndexStructures.h>

#include <faiss_flashgmm/cpu/BlasThreadScope.h>
#include <faiss_flashgmm/cpu/NearTiles.h>
#include <faiss_flashgmm/utils/ParallelGuard.h>

namespace faiss_flashgmm {

namespace {

/// Rows that a thread works on at once.
constexpr idx_t kBlock = 1024;
/// Rows whose probed lists are held at once: the most, and for each thread.
/// In between the caller may interrupt.
constexpr idx_t kProbedRows = 65536;
constexpr idx_t kThreadRows = 8 * kBlock;

/// Keeps the k smallest of what it is given.
class Smallest {
   public:
    explicit Smallest(size_t k) : k_(k) {}

    float bound() const {
        return bound_;
    }

    void push(float value) {
        values_.push_back(value);
        if (values_.size() == 2 * k_) {
            shrink();
        }
    }

    std::span<const float> finish() {
        std::sort(values_.begin(), values_.end());
        values_.resize(std::min(values_.size(), k_));
        return values_;
    }

   private:
    void shrink() {
        std::nth_element(
                values_.begin(), values_.begin() + (k_ - 1), values_.end());
        values_.resize(k_);
        bound_ = values_.back();
    }

    size_t k_;
    std::vector<float> values_;
    float bound_ = std::numeric_limits<float>::infinity();
};

/// A copy of rows that came in another order.
struct SortedRows {
    std::vector<idx_t> begin;
    std::vector<idx_t> ids; ///< what they were
    std::vector<float> rows;
};

class NearListedRows : public NearRows {
   public:
    /// @param sorted   what rows and begin point into, if nobody else owns it
    NearListedRows(
            const faiss::Index& quantizer,
            idx_t reach,
            const float* rows,
            const idx_t* begin,
            SortedRows sorted = {})
            : quantizer_(quantizer),
              n_probes_(std::min(reach, idx_t(quantizer.ntotal))),
              centroids_(quantizer.ntotal * quantizer.d),
              sorted_(std::move(sorted)) {
        quantizer.reconstruct_n(0, quantizer.ntotal, centroids_.data());
        base_.d = quantizer.d;
        base_.nlist = quantizer.ntotal;
        base_.rows = rows;
        base_.begin = begin;
        base_.centroids = centroids_.data();
        base_.inner_product =
                quantizer.metric_type == faiss::METRIC_INNER_PRODUCT;
    }

    void nearest(
            idx_t n,
            const float* x,
            int k,
            const idx_t* self,
            const VisitDistances& visit) override {
        for_blocks(n, x, [&](idx_t first, idx_t count, const auto& for_tiles) {
            std::vector<Smallest> smallest(count, Smallest(k));
            for_tiles([&](const NearTile& tile) {
                const float* distance = tile.distances;
                for (idx_t i = 0; i < tile.n_rows; i++) {
                    Smallest& s = smallest[tile.rows[i]];
                    const idx_t its_self =
                            self ? self[first + tile.rows[i]] : -1;
                    float bound = s.bound();
                    for (idx_t j = 0; j < tile.n_base; j++) {
                        if (distance[j] < bound &&
                            id_of(tile.first_base + j) != its_self) {
                            s.push(distance[j]);
                            bound = s.bound();
                        }
                    }
                    distance += tile.n_base;
                }
            });
            std::vector<std::span<const float>> found(count);
            for (idx_t i = 0; i < count; i++) {
                found[i] = smallest[i].finish();
            }
            visit(first, found);
        });
    }

    void within(
            idx_t n,
            const float* x,
            const float* radii,
            const VisitNear& visit) override {
        for_blocks(n, x, [&](idx_t first, idx_t count, const auto& for_tiles) {
            std::vector<std::vector<Near>> near(count);
            for_tiles([&](const NearTile& tile) {
                const float* distance = tile.distances;
                for (idx_t i = 0; i < tile.n_rows; i++) {
                    for (idx_t j = 0; j < tile.n_base; j++) {
                        const idx_t base = id_of(tile.first_base + j);
                        if (distance[j] <= radii[base]) {
                            near[tile.rows[i]].push_back({base, distance[j]});
                        }
                    }
                    distance += tile.n_base;
                }
            });
            if (!sorted_.ids.empty()) {
                for (std::vector<Near>& of_row : near) {
                    std::ranges::sort(of_row, {}, &Near::base);
                }
            }
            visit(first,
                  std::vector<std::span<const Near>>(near.begin(), near.end()));
        });
    }

   private:
    idx_t id_of(idx_t place) const {
        return sorted_.ids.empty() ? place : sorted_.ids[place];
    }

    /// Calls block(first row, number of rows, for_tiles) in parallel.
    template <class Block>
    void for_blocks(idx_t n, const float* x, const Block& block) const {
        const idx_t at_once =
                std::min(kProbedRows, kThreadRows * omp_get_max_threads());
        std::vector<idx_t> probes;
        std::vector<float> distances;
        for (idx_t s0 = 0; s0 < n; s0 += at_once) {
            faiss::InterruptCallback::check();
            const idx_t count = std::min(at_once, n - s0);
            probes.resize(count * n_probes_);
            distances.resize(count * n_probes_);
            quantizer_.search(
                    count,
                    x + s0 * base_.d,
                    n_probes_,
                    distances.data(),
                    probes.data());
            BlasThreadScope one_blas_thread;
            ParallelGuard guard;
#pragma omp parallel
            {
                NearTiles tiles(base_);
#pragma omp for schedule(dynamic)
                for (idx_t i0 = 0; i0 < count; i0 += kBlock) {
                    const idx_t size = std::min(kBlock, count - i0);
                    guard.run([&] {
                        block(s0 + i0, size, [&](const auto& visit) {
                            tiles.run(
                                    size,
                                    x + (s0 + i0) * base_.d,
                                    n_probes_,
                                    probes.data() + i0 * n_probes_,
                                    visit);
                        });
                    });
                }
            }
            guard.rethrow();
        }
    }

    const faiss::Index& quantizer_;
    const idx_t n_probes_;
    std::vector<float> centroids_;
    const SortedRows sorted_;
    ListedRows base_;
};

} // namespace

std::vector<idx_t> sort_by_list(
        idx_t n,
        const idx_t* lists,
        idx_t stride,
        idx_t nlist,
        std::vector<idx_t>& begin) {
    begin.assign(nlist + 1, 0);
    for (idx_t i = 0; i < n; i++) {
        if (lists[i * stride] >= 0) {
            begin[lists[i * stride] + 1]++;
        }
    }
    for (idx_t list = 0; list < nlist; list++) {
        begin[list + 1] += begin[list];
    }
    std::vector<idx_t> ids(begin[nlist]);
    std::vector<idx_t> next(begin.begin(), begin.end() - 1);
    for (idx_t i = 0; i < n; i++) {
        if (lists[i * stride] >= 0) {
            ids[next[lists[i * stride]]++] = i;
        }
    }
    return ids;
}

std::vector<float> gather_rows(
        const std::vector<idx_t>& ids,
        const float* x,
        idx_t d) {
    std::vector<float> rows(ids.size() * d);
    for (size_t i = 0; i < ids.size(); i++) {
        std::copy_n(x + ids[i] * d, d, rows.data() + i * d);
    }
    return rows;
}

std::unique_ptr<NearRows> near_listed_rows(
        const faiss::Index& quantizer,
        const NearRowsOptions& options,
        const float* base,
        const idx_t* begin) {
    if (options.search != NeighborSearch::cpu) {
        if (auto near = near_rows_on_gpu(
                    quantizer, options, begin[quantizer.ntotal], base)) {
            return near;
        }
    }
    return std::make_unique<NearListedRows>(
            quantizer, options.reach, base, begin);
}

std::unique_ptr<NearRows> near_rows(
        const faiss::Index& quantizer,
        const NearRowsOptions& options,
        idx_t n,
        const float* x) {
    if (options.search != NeighborSearch::cpu) {
        if (auto near = near_rows_on_gpu(quantizer, options, n, x)) {
            return near;
        }
    }
    std::vector<idx_t> lists(n);
    quantizer.assign(n, x, lists.data());
    SortedRows sorted;
    sorted.ids =
            sort_by_list(n, lists.data(), 1, quantizer.ntotal, sorted.begin);
    sorted.rows = gather_rows(sorted.ids, x, quantizer.d);
    const float* rows = sorted.rows.data();
    const idx_t* begin = sorted.begin.data();
    return std::make_unique<NearListedRows>(
            quantizer, options.reach, rows, begin, std::move(sorted));
}

std::vector<idx_t> probing_order(
        const faiss::Index& quantizer,
        NeighborSearch search,
        idx_t size,
        idx_t n,
        const float* x) {
    std::vector<idx_t> order(n * size);
    if (search != NeighborSearch::cpu &&
        probing_order_on_gpu(quantizer, search, size, n, x, order.data())) {
        return order;
    }
    std::vector<float> distances(std::min(n, kProbedRows) * size);
    for (idx_t i0 = 0; i0 < n; i0 += kProbedRows) {
        quantizer.search(
                std::min(kProbedRows, n - i0),
                x + i0 * quantizer.d,
                size,
                distances.data(),
                &order[i0 * size]);
    }
    return order;
}

} // namespace faiss_flashgmm
