#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <faiss_flashgmm/em/RowSource.h>
#include <faiss_flashgmm/io/VectorFile.h>

namespace faiss_flashgmm {

/** The rows of a two-dimensional dataset of numbers of an HDF5 file, as
 * ann-benchmarks publishes them: train, test, neighbors, distances.
 *
 * Read a chunk at a time and converted to float by the HDF5 library.
 */
class Hdf5Rows : public RowSource {
   public:
    /// Throws Error naming file and dataset; also when this library was built
    /// without HDF5.
    Hdf5Rows(const std::string& path, const std::string& dataset);
    ~Hdf5Rows() override;

    /// Whether this library was built with HDF5.
    static bool available();

    int64_t size() const override;
    int64_t dim() const override;
    Rows read(int64_t begin, int64_t count) override;

    /// All rows, as ids.
    Matrix<int32_t> read_ids();

   private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
    std::vector<float> chunk_;
};

} // namespace faiss_flashgmm
