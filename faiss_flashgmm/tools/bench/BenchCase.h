#pragma once

#include <cstdint>
#include <string>

#include <faiss_flashgmm/tools/bench/BenchSet.h>
#include <faiss_flashgmm/utils/Json.h>

namespace faiss_flashgmm {

/// A set, split into so many lists, with the random numbers of a seed.
struct BenchCase {
    const BenchSet& set;
    int64_t nlist;
    int seed;

    /// What tells a row of results from all others, its first fields.
    JsonObject key(
            const std::string& centroids,
            const std::string& policy,
            const std::string& codec) const {
        JsonObject row;
        row.add("bench", "ivf")
                .add("dataset", set.files.name)
                .add("nlist", nlist)
                .add("seed", seed)
                .add("centroids", centroids)
                .add("policy", policy)
                .add("codec", codec);
        return row;
    }
};

} // namespace faiss_flashgmm
