#include <faiss_flashgmm/cpu/NearTiles.h>

#include <algorithm>

#include <faiss_flashgmm/cpu/sgemm.h>

namespace faiss_flashgmm {

namespace {

/// Rows and columns of a tile: it stays in the second level cache.
constexpr int64_t kTile = 256;

/// Residuals to a centroid (to zero if null) and their squared norms.
void residuals(
        int64_t n,
        const float* x,
        const float* centroid,
        int64_t d,
        float* out,
        float* norms) {
    for (int64_t i = 0; i < n; i++) {
        float norm = 0;
        for (int64_t j = 0; j < d; j++) {
            const float r = x[i * d + j] - (centroid ? centroid[j] : 0);
            out[i * d + j] = r;
            norm += r * r;
        }
        norms[i] = norm;
    }
}

} // namespace

void NearTiles::run(
        int64_t n,
        const float* x,
        int64_t n_probes,
        const int64_t* probes,
        const std::function<void(const NearTile&)>& visit) {
    const int64_t d = base_.d;
    begin_.assign(base_.nlist + 1, 0);
    for (int64_t i = 0; i < n * n_probes; i++) {
        if (probes[i] >= 0) {
            begin_[probes[i] + 1]++;
        }
    }
    for (int64_t list = 0; list < base_.nlist; list++) {
        begin_[list + 1] += begin_[list];
    }
    members_.resize(begin_[base_.nlist]);
    std::vector<int64_t> next(begin_.begin(), begin_.end() - 1);
    for (int64_t i = 0; i < n * n_probes; i++) {
        if (probes[i] >= 0) {
            members_[next[probes[i]]++] = i / n_probes;
        }
    }

    rows_.resize(kTile * d);
    row_norms_.resize(kTile);
    base_rows_.resize(kTile * d);
    base_norms_.resize(kTile);
    distances_.resize(kTile * kTile);
    const bool ip = base_.inner_product;
    const float alpha = ip ? -1.f : -2.f, beta = 0;
    const int depth = int(d);
    for (int64_t list = 0; list < base_.nlist; list++) {
        const float* centroid = ip ? nullptr : base_.centroids + list * d;
        for (int64_t b0 = base_.begin[list]; b0 < base_.begin[list + 1];
             b0 += kTile) {
            const int n_base = int(std::min(kTile, base_.begin[list + 1] - b0));
            if (begin_[list] == begin_[list + 1]) {
                break;
            }
            residuals(
                    n_base,
                    base_.rows + b0 * d,
                    centroid,
                    d,
                    base_rows_.data(),
                    base_norms_.data());
            for (int64_t m0 = begin_[list]; m0 < begin_[list + 1];
                 m0 += kTile) {
                const int n_rows = int(std::min(kTile, begin_[list + 1] - m0));
                for (int i = 0; i < n_rows; i++) {
                    residuals(
                            1,
                            x + members_[m0 + i] * d,
                            centroid,
                            d,
                            &rows_[i * d],
                            &row_norms_[i]);
                }
                sgemm_("T",
                       "N",
                       &n_base,
                       &n_rows,
                       &depth,
                       &alpha,
                       base_rows_.data(),
                       &depth,
                       rows_.data(),
                       &depth,
                       &beta,
                       distances_.data(),
                       &n_base);
                if (!ip) {
                    for (int i = 0; i < n_rows; i++) {
                        float* row = &distances_[i * n_base];
                        for (int j = 0; j < n_base; j++) {
                            row[j] = std::max(
                                    0.f,
                                    row[j] + row_norms_[i] + base_norms_[j]);
                        }
                    }
                }
                visit({n_rows,
                       members_.data() + m0,
                       b0,
                       n_base,
                       distances_.data()});
            }
        }
    }
}

} // namespace faiss_flashgmm
