#include <faiss_flashgmm/tools/bench/Centroids.h>

#include <faiss/Clustering.h>

#if FAISS_FLASHGMM_HAS_SUPER_KMEANS
#include <faiss/SuperKMeans.h>
#endif

#include <faiss_flashgmm/factory_options.h>
#include <faiss_flashgmm/utils/Timer.h>

namespace faiss_flashgmm {

namespace {

constexpr int kIterations = 25;
constexpr int kIterationsOfPaper = 30;
constexpr const char* kPaper = "paper";
constexpr const char* kKMeans = "k-means";
constexpr const char* kSuperKMeans = "super-k-means";

/// All rows are trained on.
void set_parameters(
        const BenchSet& set,
        int64_t nlist,
        int seed,
        faiss::ClusteringParameters& cp) {
    cp.niter = kIterations;
    cp.seed = seed;
    cp.max_points_per_centroid = int(set.base.n / nlist + 1);
    cp.min_points_per_centroid = 1;
    cp.spherical = set.files.metric == faiss::METRIC_INNER_PRODUCT;
}

/// The options of "tied+uniform" and its like.
FlashGMMOptions options_of_model(const std::string& name) {
    FlashGMMOptions options;
    const size_t plus = name.find('+');
    set_options(options, {name.substr(0, plus), name.substr(plus + 1)});
    return options;
}

} // namespace

std::vector<std::string> centroid_names() {
    return {
        kKMeans,
#if FAISS_FLASHGMM_HAS_SUPER_KMEANS
                kSuperKMeans,
#endif
                "tied+uniform", "tied+free", "per_component+uniform",
                "per_component+free", kPaper
    };
}

bool is_mixture(const std::string& name) {
    return name != kKMeans && name != kSuperKMeans;
}

Centroids fit_centroids(
        const BenchSet& set,
        const std::string& name,
        int64_t nlist,
        int seed,
        const Common& common) {
    const int d = int(set.base.d);
    Centroids centroids{name, faiss::IndexFlat(d, set.files.metric), {}, {}, 0};
    const Timer timer;
    if (name == kKMeans) {
        faiss::ClusteringParameters cp;
        set_parameters(set, nlist, seed, cp);
        faiss::Clustering(d, int(nlist), cp)
                .train(set.base.n, set.rows(), centroids.quantizer);
    } else if (name == kSuperKMeans) {
#if FAISS_FLASHGMM_HAS_SUPER_KMEANS
        faiss::SuperKMeansParameters cp;
        set_parameters(set, nlist, seed, cp);
        faiss::SuperKMeans clustering(d, int(nlist), cp);
        clustering.train(set.base.n, set.rows());
        centroids.quantizer.add(nlist, clustering.centroids.data());
#endif
    } else {
        const bool is_paper = name == kPaper;
        faiss::ClusteringParameters cp;
        set_parameters(set, nlist, seed, cp);
        if (is_paper) {
            cp.niter = kIterationsOfPaper;
        }
        const auto clustering = common.make_clustering(
                d,
                nlist,
                cp,
                options_of_model(is_paper ? "per_component+free" : name));
        clustering->train(set.base.n, set.rows(), centroids.quantizer);
        centroids.mixture = std::move(clustering->mixture);
    }
    centroids.seconds = timer.seconds();
    centroids.primary.resize(set.base.n);
    centroids.quantizer.assign(
            set.base.n, set.rows(), centroids.primary.data());
    return centroids;
}

} // namespace faiss_flashgmm
