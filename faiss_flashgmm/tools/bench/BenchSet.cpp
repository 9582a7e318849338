#include <faiss_flashgmm/tools/bench/BenchSet.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <faiss/IndexFlat.h>

#include <faiss_flashgmm/io/open_vectors.h>
#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

namespace {

/// Exact neighbors a query that recalls are measured against.
constexpr int kMostNeighbors = 100;

/// What is known about a set; files are relative to where sets are.
struct KnownSet {
    const char* name;
    const char* stands_for;
    const char* base;
    const char* queries;
    const char* truth;
    std::vector<int64_t> nlists;
    bool normalize = false;
};

const std::vector<KnownSet>& known_sets() {
    // Of two sets that may be taken for each other, the public one first.
    static const std::vector<KnownSet> sets = {
            {"sift1m",
             "",
             "sift1m/sift_base.fvecs",
             "sift1m/sift_query.fvecs",
             "sift1m/sift_groundtruth.ivecs",
             {1024, 4096}},
            {"sift400k",
             "sift1m",
             "sift400k_base.u8bin",
             "sift400k_query.u8bin",
             "sift400k_groundtruth.ivecs",
             {1024, 4096}},
            {"deep10m",
             "",
             "deep10m/base.10M.fbin",
             "deep10m/query.public.10K.fbin",
             "deep10m/groundtruth.ibin",
             {1024, 16384}},
            {"deep96",
             "deep10m",
             "deep96_base.f16bin",
             "deep96_query.f16bin",
             "deep96_groundtruth.ivecs",
             {1024, 512}},
            {"glove100",
             "",
             "glove100/glove-100-angular.hdf5:train",
             "glove100/glove-100-angular.hdf5:test",
             "glove100/glove-100-angular.hdf5:neighbors",
             {1024, 4096},
             true},
            {"glove200k",
             "glove100",
             "glove200k_base.f16bin",
             "glove200k_query.f16bin",
             "glove200k_groundtruth.ivecs",
             {1024, 2048}},
            {"glove50k",
             "",
             "glove50k_base.f16bin",
             "glove50k_query.f16bin",
             "glove50k_groundtruth.ivecs",
             {256}},
            {"sift10k",
             "",
             "sift10k_base.bvecs",
             "sift10k_query.bvecs",
             "sift10k_groundtruth.ivecs",
             {64}},
    };
    return sets;
}

/// A file, or a dataset in one.
bool exists(const std::string& path) {
    const size_t colon = path.rfind(".hdf5:");
    return std::filesystem::exists(
            colon == std::string::npos ? path : path.substr(0, colon + 5));
}

bool find_set(
        const std::string& name,
        const std::string& directory,
        BenchFiles& files) {
    for (const KnownSet& set : known_sets()) {
        if (name != set.name && name != set.stands_for) {
            continue;
        }
        for (const std::string& where : {directory, directory + "/sets"}) {
            if (exists(where + "/" + set.base)) {
                files.name = set.name;
                files.stands_for = set.stands_for;
                files.base = where + "/" + set.base;
                files.queries = where + "/" + set.queries;
                files.truth = where + "/" + set.truth;
                files.nlists = set.nlists;
                files.normalize = set.normalize;
                return true;
            }
        }
    }
    return false;
}

void normalize_rows(Matrix<float>& rows) {
    for (int64_t i = 0; i < rows.n; i++) {
        float* row = &rows.values[i * rows.d];
        double norm = 0;
        for (int64_t j = 0; j < rows.d; j++) {
            norm += double(row[j]) * row[j];
        }
        const float scale = norm > 0 ? float(1 / std::sqrt(norm)) : 1;
        std::for_each(row, row + rows.d, [=](float& x) { x *= scale; });
    }
}

} // namespace

std::vector<idx_t> BenchSet::nearest(int k) const {
    std::vector<idx_t> ids(queries.n * k);
    for (int64_t q = 0; q < queries.n; q++) {
        std::copy_n(&neighbors[q * this->k], k, &ids[q * k]);
    }
    return ids;
}

double BenchSet::recall(const std::vector<idx_t>& ids, int width, int k) const {
    const int64_t nq = int64_t(ids.size()) / width;
    int64_t hits = 0;
#pragma omp parallel for reduction(+ : hits)
    for (int64_t q = 0; q < nq; q++) {
        std::vector<idx_t> wanted(
                &neighbors[q * this->k], &neighbors[q * this->k] + k);
        std::sort(wanted.begin(), wanted.end());
        for (int j = 0; j < k; j++) {
            hits += std::binary_search(
                    wanted.begin(), wanted.end(), ids[q * width + j]);
        }
    }
    return double(hits) / double(nq * k);
}

std::vector<BenchFiles> find_sets(
        const std::vector<std::string>& names,
        const std::string& directory) {
    std::vector<BenchFiles> sets;
    const auto add = [&](const std::string& name) {
        BenchFiles files;
        FLASHGMM_THROW_IF_NOT_FMT(
                find_set(name, directory, files),
                "%s: neither that set nor one that stands in for it is in %s",
                name.c_str(),
                directory.c_str());
        sets.push_back(std::move(files));
    };
    for (const std::string& name : names) {
        if (name == "paper") {
            add("sift1m");
            add("deep10m");
            add("glove100");
        } else if (name == "small") {
            add("glove50k");
            add("sift10k");
        } else {
            add(name);
        }
    }
    return sets;
}

BenchSet load_set(const BenchFiles& files) {
    BenchSet set;
    set.files = files;
    set.base = read_vectors(files.base);
    set.queries = read_vectors(files.queries);
    FLASHGMM_THROW_IF_NOT_FMT(
            set.base.d == set.queries.d && set.queries.n > 0,
            "%s is of %lld dimensions, %s holds %lld queries of %lld",
            files.base.c_str(),
            static_cast<long long>(set.base.d),
            files.queries.c_str(),
            static_cast<long long>(set.queries.n),
            static_cast<long long>(set.queries.d));
    if (files.normalize) {
        normalize_rows(set.base);
        normalize_rows(set.queries);
    }
    const int64_t nq = set.queries.n;
    if (files.truth.empty()) {
        set.k = int(std::min<int64_t>(kMostNeighbors, set.base.n));
        faiss::IndexFlat exact(set.base.d, files.metric);
        exact.add(set.base.n, set.rows());
        std::vector<float> distances(nq * set.k);
        set.neighbors.resize(distances.size());
        exact.search(
                nq,
                set.queries.values.data(),
                set.k,
                distances.data(),
                set.neighbors.data());
        return set;
    }
    const Matrix<int32_t> truth = read_ids(files.truth);
    FLASHGMM_THROW_IF_NOT_FMT(
            truth.n == nq && truth.d >= 10,
            "%s holds %lld neighbours of %lld queries; needed are 10 or more "
            "of %lld",
            files.truth.c_str(),
            static_cast<long long>(truth.d),
            static_cast<long long>(truth.n),
            static_cast<long long>(nq));
    set.k = int(std::min<int64_t>(kMostNeighbors, truth.d));
    set.neighbors.resize(nq * set.k);
    for (int64_t q = 0; q < nq; q++) {
        std::copy_n(truth.row(q), set.k, &set.neighbors[q * set.k]);
    }
    return set;
}

} // namespace faiss_flashgmm
