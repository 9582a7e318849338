// What it costs a search that vectors in two lists are returned once.
//
//     bench_search BASE QUERIES ROWS NLIST NPROBE RUNS POLICY BATCH CODEC...
//
// POLICY: nearest (with a ratio of distances that copies about half of the
// vectors), soar or demand (both with 1.5 entries a vector).
// BATCH: queries a call.
// CODEC is the part of a factory string after the lists: Flat, SQ8, PQ64x4fs.
// The same queries run by turns, on one thread, through
//   single   the stock index with one entry a vector,
//   copies   a stock index over the lists of `unique`, repeats returned,
//   unique   IndexIVFMultiAssign.
// A line holds microseconds of CPU time a query, medians of RUNS, and the
// median and extremes of unique / copies: what the repeats cost to drop. Each
// run searches new copies of the indexes: where their tables happen to lie in
// memory decides up to 12% of a scan, the same way as long as they lie there.
// `repeated` is the share of the entries in the lists of a query of which it
// has met another copy before: what not scanning them could save at most.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <omp.h>

#include <faiss/IndexIVF.h>
#include <faiss/index_factory.h>

#include <faiss_flashgmm/IndexIVFMultiAssign.h>
#include <faiss_flashgmm/MultiAssignCloner.h>
#include <faiss_flashgmm/cpu/BlasThreadScope.h>
#include <faiss_flashgmm/index_tree.h>
#include <faiss_flashgmm/io/open_vectors.h>
#include <faiss_flashgmm/stock_index.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Json.h>

#include "timing.h"

namespace {

using namespace faiss_flashgmm;

MultiAssign assigner_of(const std::string& policy) {
    MultiAssign assigner;
    if (policy == "nearest") {
        assigner.policy = AssignPolicy::nearest;
        assigner.distance_ratio = 1.07;
        return assigner;
    }
    FLASHGMM_THROW_IF_NOT_FMT(
            policy == "soar" || policy == "demand",
            "there is no policy %s here",
            policy.c_str());
    assigner.policy =
            policy == "soar" ? AssignPolicy::soar : AssignPolicy::demand;
    assigner.max_inflation = 1.5;
    return assigner;
}

/// A copy of an index somewhere else in memory, but for its lists.
struct Moved {
    std::vector<char> gap;
    std::unique_ptr<faiss::Index> index;

    Moved(const faiss::Index& from,
          faiss::InvertedLists* lists,
          std::mt19937& random)
            : gap(16 * (1 + random() % 256)), index(clone_index(from)) {
        extract_index_ivf(index.get())->replace_invlists(lists, false);
    }
};

/// CPU time of a search, microseconds a query.
double time_search(
        const faiss::Index& index,
        const Matrix<float>& queries,
        int64_t batch,
        int64_t k) {
    std::vector<float> distances(batch * k);
    std::vector<idx_t> labels(batch * k);
    double start = 0;
    for (bool warm : {false, true}) {
        if (warm) {
            start = cpu_seconds();
        }
        for (int64_t i = 0; i < queries.n; i += batch) {
            index.search(
                    std::min(batch, queries.n - i),
                    queries.values.data() + i * queries.d,
                    k,
                    distances.data(),
                    labels.data());
        }
    }
    return (cpu_seconds() - start) / double(queries.n) * 1e6;
}

std::unique_ptr<faiss::Index> make_index(
        const Matrix<float>& base,
        int64_t n,
        size_t nlist,
        const std::string& codec,
        const MultiAssign& assigner,
        std::vector<float>& centroids) {
    std::unique_ptr<faiss::Index> index(faiss::index_factory(
            int(base.d),
            ("IVF" + std::to_string(nlist) + "," + codec).c_str()));
    make_multi_assign(index, assigner)->kmeans_centroids = true;
    faiss::Index* quantizer = extract_index_ivf(index.get())->quantizer;
    if (!centroids.empty()) {
        quantizer->add(idx_t(nlist), centroids.data());
    }
    index->train(n, base.values.data());
    centroids.resize(nlist * base.d);
    quantizer->reconstruct_n(0, idx_t(nlist), centroids.data());
    index->add(n, base.values.data());
    return index;
}

/// The share of the entries that searches scan of which another copy was
/// scanned before.
double repeated_share(
        const faiss::IndexIVF& ivf,
        const Matrix<float>& queries) {
    std::vector<idx_t> lists(queries.n * ivf.nprobe);
    ivf.quantizer->assign(
            queries.n, queries.values.data(), lists.data(), ivf.nprobe);
    size_t n_scanned = 0, n_different = 0;
    for (size_t i = 0; i < size_t(queries.n); i++) {
        std::vector<idx_t> ids;
        for (size_t j = i * ivf.nprobe; j < (i + 1) * ivf.nprobe; j++) {
            faiss::InvertedLists::ScopedIds entries(ivf.invlists, lists[j]);
            ids.insert(
                    ids.end(),
                    entries.get(),
                    entries.get() + ivf.invlists->list_size(lists[j]));
        }
        n_scanned += ids.size();
        std::sort(ids.begin(), ids.end());
        n_different += std::unique(ids.begin(), ids.end()) - ids.begin();
    }
    return 1 - double(n_different) / double(n_scanned);
}

int run(int argc, char** argv) {
    FLASHGMM_THROW_IF_NOT_FMT(
            argc > 9,
            "usage: bench_search BASE QUERIES ROWS NLIST NPROBE RUNS POLICY "
            "BATCH CODEC...");
    const Matrix<float> base = read_vectors(argv[1]);
    const Matrix<float> queries = read_vectors(argv[2]);
    const int64_t n = std::min<int64_t>(base.n, std::atoll(argv[3]));
    const size_t nlist = std::atoll(argv[4]), nprobe = std::atoll(argv[5]);
    const int runs = std::atoi(argv[6]);
    const MultiAssign assigner = assigner_of(argv[7]);
    const int64_t batch = std::atoll(argv[8]);
    FLASHGMM_THROW_IF_NOT_FMT(batch > 0, "%s queries a call", argv[8]);
    std::vector<float> centroids;
    for (int c = 9; c < argc; c++) {
        const auto index =
                make_index(base, n, nlist, argv[c], assigner, centroids);
        const auto single = to_stock(*index, StockCopies::single);
        const auto copies = to_stock(*index, StockCopies::all);
        for (faiss::Index* any : {index.get(), single.get(), copies.get()}) {
            extract_index_ivf(any)->nprobe = nprobe;
        }
        const double repeated =
                repeated_share(*extract_index_ivf(index.get()), queries);
        for (int64_t k : {10, 100}) {
            omp_set_num_threads(1);
            std::optional<BlasThreadScope> blas(std::in_place);
            std::mt19937 random(1);
            std::vector<double> times[3], ratios;
            for (int i = 0; i < runs; i++) {
                const faiss::Index* searched[] = {
                        single.get(), copies.get(), index.get()};
                for (int j = 0; j < 3; j++) {
                    // The lists of `index` in both that hold copies.
                    const faiss::Index* holder = searched[j == 0 ? 0 : 2];
                    const Moved moved(
                            *searched[j],
                            extract_index_ivf(holder)->invlists,
                            random);
                    times[j].push_back(
                            time_search(*moved.index, queries, batch, k));
                }
                ratios.push_back(times[2][i] / times[1][i]);
            }
            blas.reset();
            omp_set_num_threads(omp_get_num_procs());
            const auto* multi = dynamic_cast<IVFMultiAssign*>(index.get());
            std::printf(
                    "%s\n",
                    JsonObject()
                            .add("bench", "search")
                            .add("faiss",
                                 std::to_string(FAISS_VERSION_MAJOR) + "." +
                                         std::to_string(FAISS_VERSION_MINOR) +
                                         "." +
                                         std::to_string(FAISS_VERSION_PATCH))
                            .add("codec", argv[c])
                            .add("rows", n)
                            .add("nlist", nlist)
                            .add("nprobe", nprobe)
                            .add("batch", batch)
                            .add("k", k)
                            .add("policy", argv[7])
                            .add("entries_per_vector",
                                 multi->entries_per_vector())
                            .add("repeated", repeated)
                            .add("single_us", median(times[0]))
                            .add("copies_us", median(times[1]))
                            .add("unique_us", median(times[2]))
                            .add("cost", median(ratios))
                            .add("cost_min",
                                 *std::min_element(
                                         ratios.begin(), ratios.end()))
                            .add("cost_max",
                                 *std::max_element(
                                         ratios.begin(), ratios.end()))
                            .str()
                            .c_str());
            std::fflush(stdout);
        }
    }
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "bench_search: %s\n", error.what());
        return 1;
    }
}
