// Built instead of Hdf5Rows.cpp where there is no HDF5.

#include <faiss_flashgmm/io/Hdf5Rows.h>

#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

struct Hdf5Rows::Impl {};

Hdf5Rows::Hdf5Rows(const std::string& path, const std::string& dataset) {
    FLASHGMM_THROW_FMT(
            "%s:%s: this library was built without HDF5",
            path.c_str(),
            dataset.c_str());
}

Hdf5Rows::~Hdf5Rows() = default;

bool Hdf5Rows::available() {
    return false;
}

int64_t Hdf5Rows::size() const {
    return 0;
}

int64_t Hdf5Rows::dim() const {
    return 0;
}

Rows Hdf5Rows::read(int64_t, int64_t) {
    return {};
}

Matrix<int32_t> Hdf5Rows::read_ids() {
    return {};
}

} // namespace faiss_flashgmm
