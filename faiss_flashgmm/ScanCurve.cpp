#include <faiss_flashgmm/ScanCurve.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <faiss/impl/FaissAssert.h>

namespace faiss_flashgmm {

namespace {

/// Queries whose probing order is held at once.
constexpr idx_t kBlock = 1024;

} // namespace

double ScanCurve::scanned_at(double wanted) const {
    const double probes = probes_at(wanted);
    if (probes < 1 || std::isinf(probes)) {
        return probes < 1 ? scanned[0] : probes;
    }
    const size_t i = size_t(probes) - 1;
    const double part = probes - std::floor(probes);
    return part == 0 ? scanned[i]
                     : std::exp(
                               (1 - part) * std::log(scanned[i]) +
                               part * std::log(scanned[i + 1]));
}

double ScanCurve::probes_at(double wanted) const {
    const size_t i = std::lower_bound(recall.begin(), recall.end(), wanted) -
            recall.begin();
    if (i == recall.size()) {
        return std::numeric_limits<double>::infinity();
    }
    return i == 0 ? 1
                  : double(i) +
                    (wanted - recall[i - 1]) / (recall[i] - recall[i - 1]);
}

ScanCurve measure_scans(
        const faiss::Index& quantizer,
        idx_t n,
        int width,
        const idx_t* lists,
        idx_t nq,
        const float* queries,
        int k,
        const idx_t* neighbors) {
    const idx_t nlist = quantizer.ntotal;
    std::vector<double> sizes(nlist);
    for (idx_t i = 0; i < n * width; i++) {
        if (lists[i] >= 0) {
            sizes[lists[i]]++;
        }
    }
    idx_t wanted = 0;
    ScanCurve curve;
    curve.recall.resize(nlist);
    curve.scanned.resize(nlist);
    std::vector<idx_t> order(std::min(kBlock, nq) * nlist), place(nlist + 1);
    std::vector<float> distances(order.size());
    for (idx_t q0 = 0; q0 < nq; q0 += kBlock) {
        const idx_t count = std::min(kBlock, nq - q0);
        quantizer.search(
                count,
                queries + q0 * quantizer.d,
                nlist,
                distances.data(),
                order.data());
        for (idx_t q = 0; q < count; q++) {
            std::fill(place.begin(), place.end(), nlist);
            for (idx_t r = 0; r < nlist; r++) {
                const idx_t list = order[q * nlist + r];
                if (list >= 0) {
                    place[list] = r;
                    curve.scanned[r] += sizes[list];
                }
            }
            for (int j = 0; j < k; j++) {
                const idx_t row = neighbors[(q0 + q) * k + j];
                if (row < 0) {
                    continue;
                }
                FAISS_THROW_IF_NOT_FMT(
                        row < n,
                        "neighbor %ld, there are %ld rows",
                        long(row),
                        long(n));
                wanted++;
                idx_t first = nlist;
                for (int t = 0; t < width; t++) {
                    const idx_t list = lists[row * width + t];
                    first = std::min(first, list < 0 ? nlist : place[list]);
                }
                if (first < nlist) {
                    curve.recall[first]++;
                }
            }
        }
    }
    for (idx_t r = 0; r < nlist; r++) {
        curve.recall[r] /= double(std::max<idx_t>(wanted, 1));
        curve.scanned[r] /= double(std::max<idx_t>(nq, 1));
        if (r > 0) {
            curve.recall[r] += curve.recall[r - 1];
            curve.scanned[r] += curve.scanned[r - 1];
        }
    }
    return curve;
}

} // namespace faiss_flashgmm
