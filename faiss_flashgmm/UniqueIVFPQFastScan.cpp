#include <faiss_flashgmm/UniqueIVFPQFastScan.h>

#if FAISS_FLASHGMM_HAS_FAST_SCAN_SCANNER

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <omp.h>

#include <faiss/impl/FaissAssert.h>
#include <faiss/impl/IDSelector.h>
#include <faiss/impl/fast_scan/fast_scan.h>
#include <faiss/impl/fast_scan/simd_result_handlers.h>
#include <faiss/utils/AlignedTable.h>

#include <faiss_flashgmm/IVFMultiAssign.h>
#include <faiss_flashgmm/UniqueBest.h>
#include <faiss_flashgmm/cpu/row_kernels.h>

namespace faiss_flashgmm {

namespace {

/// Measured: up to as many, to keep results sorted is faster.
constexpr idx_t kFewResults = 16;

/// For more, to hold the results of all queries at once takes too much memory.
constexpr idx_t kMostResults = 1024;
static_assert(kMostResults <= idx_t(BufferedBest::kMost));

/// Codes of a block.
constexpr size_t kBlock = 32;
static_assert(kBlock == row_kernels::kBelowBlock);

size_t round_up_to_blocks(size_t n) {
    return (n + kBlock - 1) / kBlock * kBlock;
}

/** The k best different ids of each query, each with its best distance.
 *
 * Best: SortedBest or BufferedBest.
 */
template <class Best>
class Results final : public faiss::SIMDResultHandlerToFloat {
   public:
    Results(bool similarity,
            size_t n,
            size_t k,
            float* distances,
            idx_t* labels,
            const faiss::IDSelector* sel)
            : SIMDResultHandlerToFloat(n, 0),
              k_(k),
              distances_(distances),
              labels_(labels),
              sel_(sel),
              flip_(similarity ? 0xffff : 0),
              best_(n, k) {}

    /** Takes distances of a query to entries of the list at hand.
     *
     * @param query     its number in q_map and dbias
     * @param first     offset of the first entry in the list
     * @param n         entries
     * @param found     distances, size round_up_to_blocks(n)
     */
    void add(size_t query, size_t first, size_t n, const uint16_t* found) {
        const size_t q = q_map[query];
        const uint16_t bias = dbias ? dbias[query] : 0;
        const size_t n_padded = round_up_to_blocks(n);
        uint16_t threshold = best_.threshold(q);
        uint32_t below = 0;
        const auto next = [&](size_t from) {
            return row_kernels::next_below(
                    n_padded, found, bias, flip_, threshold, from, &below);
        };
        for (size_t i = next(0); i < n; i = next(i + kBlock)) {
            for (; below != 0; below &= below - 1) {
                const size_t j = i + std::countr_zero(below);
                const uint16_t loss = uint16_t(found[j] + bias) ^ flip_;
                if (j < n && loss < threshold) {
                    const idx_t id = id_map[first + j];
                    if (!sel_ || sel_->is_member(id)) {
                        best_.add(q, loss, id);
                        threshold = best_.threshold(q);
                    }
                }
            }
        }
    }

    void end() override {
        for (size_t q = 0; q < nq; q++) {
            const float step = normalizers ? 1 / normalizers[2 * q] : 1;
            const float origin = normalizers ? normalizers[2 * q + 1] : 0;
            float* distances = distances_ + q * k_;
            idx_t* labels = labels_ + q * k_;
            const auto [losses, ids] = best_.best(q);
            const size_t size = ids.size();
            for (size_t i = 0; i < size; i++) {
                // Rounded once, as in the scanners of FAISS.
                distances[i] = std::fma(
                        float(uint16_t(losses[i] ^ flip_)), step, origin);
            }
            std::copy_n(ids.begin(), size, labels);
            std::fill(
                    distances + size,
                    distances + k_,
                    flip_ ? std::numeric_limits<float>::lowest()
                          : std::numeric_limits<float>::max());
            std::fill(labels + size, labels + k_, idx_t(-1));
        }
    }

    void set_block_origin(size_t, size_t) override {}

   private:
    const size_t k_;
    float* const distances_;
    idx_t* const labels_;
    const faiss::IDSelector* const sel_;
    const uint16_t flip_; ///< distance ^ flip_ is the loss
    Best best_;
};

/** Has FAISS write the distances to a stretch of a list, and picks the results
 * from there: its own scanners, which compare at once, are templates of a file
 * for each instruction set.
 */
template <class Best>
class Scanner final : public faiss::FastScanCodeScanner {
   public:
    Scanner(bool similarity,
            idx_t n,
            idx_t k,
            float* distances,
            idx_t* labels,
            const faiss::IDSelector* sel)
            : results_(similarity, n, k, distances, labels, sel),
              found_(kMostQueries * kStretch) {}

    faiss::SIMDResultHandlerToFloat* handler() override {
        return &results_;
    }

    void accumulate_loop_qbs(
            int qbs,
            size_t nb,
            int nsq,
            const uint8_t* codes,
            const uint8_t* LUT,
            int /*pq2x4_scale*/,
            size_t block_stride) override {
        for (size_t first = 0; first < nb; first += kStretch) {
            const size_t n = std::min(kStretch, nb - first);
            const size_t n_padded = round_up_to_blocks(n);
            const uint8_t* tables = LUT;
            size_t query = 0;
            // A digit of qbs is the size of a group of queries.
            for (int digits = qbs; digits != 0; digits >>= 4) {
                const int n_group = digits & 15;
                faiss::accumulate_to_mem(
                        n_group,
                        n_padded,
                        nsq,
                        codes + first / kBlock * block_stride,
                        tables,
                        found_.get());
                for (int i = 0; i < n_group; i++) {
                    const uint16_t* found = found_.get() + i * n_padded;
                    results_.add(query++, first, n, found);
                }
                tables += size_t(n_group) * nsq * 16;
            }
        }
    }

    void accumulate_loop(
            int,
            size_t,
            int,
            int,
            const uint8_t*,
            const uint8_t*,
            int,
            size_t) override {
        FAISS_THROW_MSG("this scanner takes the queries of a list together");
    }

   private:
    static constexpr size_t kMostQueries = 4; ///< that FAISS takes at once
    static constexpr size_t kStretch = 256;   ///< codes: distances stay in L1

    Results<Best> results_;
    faiss::AlignedTable<uint16_t> found_;
};

/// Whether the search hands the queries of a list over together.
bool groups_queries(int implem) {
    return implem == 12 || implem == 13;
}

/// Whether there is a scanner for as many results.
bool has_scanner(idx_t k) {
    return k > 1 && k <= kMostResults; // k = 1 has no repeats
}

} // namespace

bool UniqueIVFPQFastScan::drops_repeats(
        idx_t k,
        const faiss::IVFSearchParameters* params) const {
    const bool stops_early = params &&
            (params->max_codes != 0 || params->max_lists_num != 0 ||
             params->ensure_topk_full);
    const bool chosen = implem == 0 ? bbs == int(kBlock) && !stops_early
                                    : groups_queries(implem % 100);
    return chosen && has_scanner(k);
}

idx_t UniqueIVFPQFastScan::queries_at_once(idx_t k) const {
    constexpr idx_t kBytes = 64 << 20, kQueriesOfAThread = 1024;
    const idx_t bytes_a_query = 3 * k * (sizeof(uint16_t) + sizeof(idx_t));
    return std::clamp<idx_t>(
            kBytes / bytes_a_query,
            1,
            kQueriesOfAThread * omp_get_max_threads());
}

std::unique_ptr<faiss::FastScanCodeScanner> UniqueIVFPQFastScan::
        make_knn_scanner(
                bool is_max,
                idx_t n,
                idx_t k,
                float* distances,
                idx_t* labels,
                const faiss::IDSelector* sel,
                int impl,
                const faiss::FastScanDistancePostProcessing& context) const {
    const auto* index = dynamic_cast<const IVFMultiAssign*>(this);
    if (groups_queries(impl) && has_scanner(k) && index &&
        index->counts().copies > 0) {
        if (k <= kFewResults) {
            return std::make_unique<Scanner<SortedBest>>(
                    !is_max, n, k, distances, labels, sel);
        }
        return std::make_unique<Scanner<BufferedBest>>(
                !is_max, n, k, distances, labels, sel);
    }
    return IndexIVFPQFastScan::make_knn_scanner(
            is_max, n, k, distances, labels, sel, impl, context);
}

} // namespace faiss_flashgmm

#endif
