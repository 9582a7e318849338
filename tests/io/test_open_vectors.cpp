#include <faiss_flashgmm/io/open_vectors.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <faiss_flashgmm/io/Hdf5Rows.h>
#include <faiss_flashgmm/io/VectorWriter.h>
#include <faiss_flashgmm/utils/Error.h>

#if FLASHGMM_TEST_HDF5
#include <hdf5.h>
#endif

#include "files.h"

using namespace faiss_flashgmm;

TEST(open_vectors, StopsAfterTheRowsAskedFor) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("x.fbin");
    VectorWriter writer(path, 2);
    const std::vector<float> x = {0, 1, 2, 3, 4, 5};
    writer.append(3, x.data());
    writer.finish();
    EXPECT_EQ(open_vectors(path)->size(), 3);
    EXPECT_EQ(open_vectors(path, 7)->size(), 3);
    EXPECT_EQ(open_vectors(path, 0)->size(), 0);
    const Matrix<float> two = read_vectors(path, 2);
    EXPECT_EQ(two.n, 2);
    EXPECT_EQ(two.d, 2);
    EXPECT_EQ(two.values, (std::vector<float>{0, 1, 2, 3}));
}

TEST(open_vectors, ReadsIdsOnly) {
    const TemporaryDirectory directory;
    VectorWriter writer(directory.file("x.ivecs"), 2);
    const std::vector<int64_t> ids = {4, 5, 6, 7};
    writer.append(2, ids.data());
    writer.finish();
    const Matrix<int32_t> back = read_ids(directory.file("x.ivecs"));
    EXPECT_EQ(back.n, 2);
    EXPECT_EQ(back.row(1)[0], 6);
    VectorWriter floats(directory.file("x.fbin"), 1);
    floats.finish();
    EXPECT_THROW(read_ids(directory.file("x.fbin")), Error);
}

#if FLASHGMM_TEST_HDF5

namespace {

template <class T>
void put(
        hid_t file,
        const char* name,
        std::vector<hsize_t> shape,
        hid_t type,
        const std::vector<T>& values) {
    const hid_t space =
            H5Screate_simple(int(shape.size()), shape.data(), nullptr);
    const hid_t dataset = H5Dcreate2(
            file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    H5Dclose(dataset);
    H5Sclose(space);
}

} // namespace

TEST(Hdf5Rows, ReadsTheLayoutOfAnnBenchmarks) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("set.hdf5");
    const hid_t file =
            H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    std::vector<float> x(60);
    for (size_t i = 0; i < x.size(); i++) {
        x[i] = 0.25f * float(i);
    }
    put(file, "train", {20, 3}, H5T_NATIVE_FLOAT, x);
    put(file, "test", {1, 3}, H5T_NATIVE_DOUBLE, std::vector<double>{1, 2, 3});
    put(file, "neighbors", {1, 2}, H5T_NATIVE_INT, std::vector<int>{7, 19});
    put(file, "flat", {6}, H5T_NATIVE_INT, std::vector<int>{1, 2, 3, 4, 5, 6});
    H5Fclose(file);

    EXPECT_EQ(read_vectors(path).values, x);
    EXPECT_EQ(
            read_vectors(path + ":test").values, (std::vector<float>{1, 2, 3}));
    EXPECT_EQ(read_ids(path).values, (std::vector<int32_t>{7, 19}));
    const std::unique_ptr<RowSource> rows = open_vectors(path);
    const Rows middle = rows->read(7, 2);
    EXPECT_EQ(
            std::vector<float>(middle.x.floats(), middle.x.floats() + 6),
            std::vector<float>(x.begin() + 21, x.begin() + 27));
    EXPECT_EQ(rows->read(20, 0).n, 0);
    EXPECT_THROW(rows->read(19, 2), Error);

    const std::string missing =
            message_of<Error>([&] { open_vectors(path + ":nothing"); });
    EXPECT_NE(missing.find("nothing"), std::string::npos) << missing;
    EXPECT_THROW(open_vectors(path + ":flat"), Error);
    directory.write("foreign.hdf5", "not HDF5");
    EXPECT_THROW(open_vectors(directory.file("foreign.hdf5")), Error);
    EXPECT_THROW(open_vectors(directory.file("missing.h5")), Error);
}

#else

TEST(Hdf5Rows, SaysThatItWasNotBuilt) {
    EXPECT_FALSE(Hdf5Rows::available());
    const std::string error =
            message_of<Error>([] { open_vectors("set.hdf5"); });
    EXPECT_NE(error.find("without HDF5"), std::string::npos) << error;
}

#endif
