#include <faiss_flashgmm/io/MixtureFile.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include <faiss_flashgmm/io/VectorFile.h>
#include <faiss_flashgmm/io/VectorWriter.h>
#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

void write_mixture(const Mixture& mixture, const std::string& path) {
    FLASHGMM_THROW_IF_NOT_FMT(
            path.ends_with(".npy"),
            "%s: the name of a mixture ends in .npy",
            path.c_str());
    VectorWriter writer(path, mixture.d + 2, ElementType::float64);
    std::vector<double> row(mixture.d + 2);
    for (int64_t i = 0; i < mixture.k; i++) {
        row[0] = mixture.weights[i];
        row[1] = mixture.variances[i];
        std::copy_n(mixture.mean(i), mixture.d, row.data() + 2);
        writer.append(1, row.data());
    }
    writer.finish();
}

Mixture read_mixture(const std::string& path) {
    const VectorFile file(path);
    FLASHGMM_THROW_IF_NOT_FMT(
            file.layout().type == ElementType::float64 && file.size() >= 1 &&
                    file.dim() >= 3,
            "%s holds %lld rows of %lld elements of %s, and no mixture: that "
            "is k rows of d + 2 elements of float64",
            path.c_str(),
            static_cast<long long>(file.size()),
            static_cast<long long>(file.dim()),
            name_of(file.layout().type));
    Mixture mixture(file.size(), file.dim() - 2);
    std::vector<double> row(file.dim());
    for (int64_t i = 0; i < mixture.k; i++) {
        file.read_as(i, 1, row.data());
        mixture.weights[i] = row[0];
        mixture.variances[i] = row[1];
        std::copy_n(row.data() + 2, mixture.d, mixture.mean(i));
    }
    try {
        mixture.check();
    } catch (const Error& error) {
        FLASHGMM_THROW_FMT("%s: %s", path.c_str(), error.what());
    }
    return mixture;
}

} // namespace faiss_flashgmm
