#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <faiss_flashgmm/em/RowSource.h>
#include <faiss_flashgmm/io/VectorFile.h>

namespace faiss_flashgmm {

/** Opens the rows of a file by its name: the formats of VectorLayout, or
 * FILE.hdf5:DATASET (also .h5; the dataset is "train" if none is named).
 *
 * @param max_rows  of the file, from the first on; < 0: all
 * Throws Error naming the file and what is wrong with it.
 */
std::unique_ptr<RowSource> open_vectors(
        const std::string& path,
        int64_t max_rows = -1);

/// All rows of what open_vectors() opens, in memory.
Matrix<float> read_vectors(const std::string& path, int64_t max_rows = -1);

/// All ids of an .ivecs, .ibin or int32 .npy file, or of a dataset of an HDF5
/// file ("neighbors" if none is named).
Matrix<int32_t> read_ids(const std::string& path);

} // namespace faiss_flashgmm
