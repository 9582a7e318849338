#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <faiss/IndexFlat.h>

#include <faiss_flashgmm/em/Mixture.h>
#include <faiss_flashgmm/tools/bench/BenchSet.h>
#include <faiss_flashgmm/tools/commands.h>

namespace faiss_flashgmm {

/// Centroids of lists, and the mixture that belongs to them, if any.
struct Centroids {
    std::string name;
    faiss::IndexFlat quantizer;
    Mixture mixture;            ///< k = 0: none
    std::vector<idx_t> primary; ///< list of each row
    double seconds = 0;         ///< of the fit
};

/// k-means, super-k-means (with FAISS 1.15), VARIANCE+WEIGHTS and paper: the
/// mixture of the Flash-GMM paper, per_component+free with 30 iterations. The
/// others run 25. The first one is what the others are compared with.
std::vector<std::string> centroid_names();

/// Whether centroids of that name have a mixture.
bool is_mixture(const std::string& name);

/** Fits centroids to all rows of a set.
 *
 * @param common    says where mixtures are fitted; all else runs on the CPU
 */
Centroids fit_centroids(
        const BenchSet& set,
        const std::string& name,
        int64_t nlist,
        int seed,
        const Common& common);

} // namespace faiss_flashgmm
