#pragma once

#include <string>

#include <faiss_flashgmm/em/Mixture.h>

namespace faiss_flashgmm {

/** A mixture as a .npy file of float64 and shape (k, d + 2). A row holds the
 * weight of a component, its variance, and its mean:
 *
 *     mixture = numpy.load("mixture.npy")
 *     weights, variances, means = mixture[:, 0], mixture[:, 1], mixture[:, 2:]
 *
 * Reads back bit for bit. Throws Error naming the file.
 */
void write_mixture(const Mixture& mixture, const std::string& path);

/// Throws Error, naming the file, also if it holds no mixture.
Mixture read_mixture(const std::string& path);

} // namespace faiss_flashgmm
