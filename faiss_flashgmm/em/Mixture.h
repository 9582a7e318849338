#pragma once

#include <cstdint>
#include <vector>

namespace faiss_flashgmm {

/** Isotropic Gaussian mixture of k components in d dimensions:
 *
 *     p(x) = sum_k weights[k] * N(x; means[k], variances[k] * I)
 *
 * Means are fp32 (they become IVF centroids), the rest fp64.
 */
struct Mixture {
    int64_t k = 0; ///< number of components
    int64_t d = 0; ///< dimension of the rows

    std::vector<float> means;      ///< size k * d, row-major
    std::vector<double> variances; ///< size k, per dimension, > 0
    std::vector<double> weights;   ///< size k, >= 0, sum to 1

    Mixture() = default;

    /// Zero means, unit variances, equal weights.
    Mixture(int64_t k, int64_t d);

    const float* mean(int64_t component) const {
        return means.data() + component * d;
    }
    float* mean(int64_t component) {
        return means.data() + component * d;
    }

    /// Throws Error naming the first entry that breaks the invariants above.
    void check() const;

    /// Number of different rows among the means (bit for bit).
    int64_t distinct_means() const;
};

/** Change of units x' = (x - shift) / scale, applied to rows before anything
 * is expanded as |x|^2 - 2 x.mu + |mu|^2 or rounded to a narrow type.
 *
 * The shift is the data mean rounded to fp32 and the scale a power of two, so
 * that the change of units rounds once and does not depend on the order in
 * which the mean was summed.
 */
struct Conditioning {
    std::vector<float> shift; ///< size d
    double scale = 1;         ///< a power of two

    /// Mean variance of a coordinate of the rows, in conditioned units. The
    /// variance floor is relative to it.
    double global_variance = 1;

    /// No change: zero shift, scale 1.
    static Conditioning identity(int64_t d);

    /** The change of units for data of which only the moments are known.
     *
     * @param mean          fp64 mean of the rows, size d
     * @param variance      mean over the coordinates of the rows' variance
     * @param center        false keeps shift = 0 (unit-norm means must stay
     *                      unit-norm)
     */
    static Conditioning from_moments(
            const std::vector<double>& mean,
            double variance,
            bool center);

    /// A change of units that suits rows drawn from the mixture.
    static Conditioning from_mixture(const Mixture& mixture);

    /// out[i] = (x[i] - shift) / scale, for n rows of dimension shift.size()
    void apply(int64_t n, const float* x, float* out) const;

    Mixture to_conditioned(const Mixture& user) const;
    Mixture to_user(const Mixture& conditioned) const;

    /// Add this to a log-density in conditioned units to get user units.
    double log_density_offset() const;
};

} // namespace faiss_flashgmm
