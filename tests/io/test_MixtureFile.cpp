#include <faiss_flashgmm/io/MixtureFile.h>

#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include <faiss_flashgmm/io/VectorWriter.h>
#include <faiss_flashgmm/utils/Error.h>

#include "files.h"

using namespace faiss_flashgmm;

namespace {

Mixture thirds() {
    Mixture mixture(3, 2);
    for (int64_t i = 0; i < 3; i++) {
        mixture.weights[i] = 1.0 / 3;
        mixture.variances[i] = 1.0 / (i + 3);
        mixture.mean(i)[0] = float(i) / 7;
        mixture.mean(i)[1] = -1e-30f;
    }
    return mixture;
}

} // namespace

TEST(MixtureFile, ComesBackBitForBit) {
    const TemporaryDirectory directory;
    const Mixture mixture = thirds();
    write_mixture(mixture, directory.file("m.npy"));
    const Mixture back = read_mixture(directory.file("m.npy"));
    EXPECT_EQ(back.k, 3);
    EXPECT_EQ(back.d, 2);
    EXPECT_EQ(back.means, mixture.means);
    EXPECT_EQ(back.variances, mixture.variances);
    EXPECT_EQ(back.weights, mixture.weights);
}

TEST(MixtureFile, RefusesWhatIsNoMixture) {
    const TemporaryDirectory directory;
    EXPECT_THROW(write_mixture(thirds(), directory.file("m.fbin")), Error);

    Mixture negative = thirds();
    negative.variances[1] = -1;
    write_mixture(negative, directory.file("negative.npy"));
    const std::string error = message_of<Error>(
            [&] { read_mixture(directory.file("negative.npy")); });
    EXPECT_NE(error.find("negative.npy"), std::string::npos) << error;
    EXPECT_NE(error.find("-1"), std::string::npos) << error;

    VectorWriter floats(directory.file("floats.npy"), 4);
    floats.finish();
    EXPECT_THROW(read_mixture(directory.file("floats.npy")), Error);
    EXPECT_THROW(read_mixture(directory.file("missing.npy")), Error);
}
