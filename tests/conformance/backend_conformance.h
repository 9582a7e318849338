#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include <faiss_flashgmm/em/Backend.h>

namespace faiss_flashgmm::conformance {

/// Rows, weights and a mixture, in the user's units.
struct Problem {
    int64_t n = 0;
    std::vector<float> x;
    std::vector<float> weights; ///< empty: none
    Mixture mixture;
    Conditioning conditioning;
};

/// One entry of the list that every backend has to pass.
struct Case {
    std::string name;
    int64_t n;
    int64_t k;
    int64_t d;
    /// Distance between the means, in standard deviations of a component:
    /// small means that many components share a row.
    double separation = 3;
    /// Component variances span this factor.
    double variance_span = 4;
    bool weighted = false;
    bool zero_weights = false; ///< some components have weight 0
    double offset = 0;         ///< added to every coordinate
    double scale = 1;          ///< of the whole problem

    Problem make(uint64_t seed) const;
};

/// How GoogleTest names a case.
inline void PrintTo(const Case& c, std::ostream* out) {
    *out << c.name;
}

/// Shapes and data that have broken libraries of this kind.
const std::vector<Case>& cases();

/// The statistics of all rows, passed on in chunks of so many.
SufficientStats statistics_of(
        Backend& backend,
        const Problem& p,
        int64_t chunk);

/** How far a backend may be from the fp64 reference.
 *
 * A relative error e of a row moves the logit of a component by up to
 * e |x| |x - mu| / s in conditioned units. Both bounds are multiplied by 1 +
 * the largest such quotient of a pair that shares responsibility.
 */
struct Bounds {
    /// log Z and log-scores: absolute error, plus the same share of the value.
    double log_z;
    /// counts, squared and sums: share of the sum of the terms' magnitudes.
    double statistics;
    /// Largest responsibility that may be left out of the statistics.
    double dropped;
};

/// Compares log-scores, ranks, log Z and all statistics with the fp64
/// reference; reports through GoogleTest.
void expect_conforms(Backend& backend, const Case& c, const Bounds& bounds);

/// Chunks of any size give the statistics that all rows at once give, within
/// a relative tolerance (0: bit for bit). The estimate of the dropped mass is
/// left out.
void expect_chunks_do_not_matter(
        Backend& backend,
        const Case& c,
        double tolerance);

/// Whole numbers from 0 to 127 stored as a type.
std::vector<std::byte> encode(const std::vector<float>& x, RowType type);

/// A problem whose rows are such numbers.
Problem whole_numbers(uint64_t seed);

/// Rows of every type give what the same numbers as floats give, within a
/// relative tolerance (0: bit for bit).
void expect_row_types_do_not_matter(Backend& backend, double tolerance);

} // namespace faiss_flashgmm::conformance
