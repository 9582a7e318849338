#include <faiss_flashgmm/io/Hdf5Rows.h>

#include <algorithm>
#include <array>
#include <utility>

#include <hdf5.h>

#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/memory.h>

namespace faiss_flashgmm {

namespace {

/// An id of the HDF5 library, closed with the object.
class Handle {
   public:
    Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
    ~Handle() {
        if (id_ >= 0) {
            close_(id_);
        }
    }
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;

    operator hid_t() const {
        return id_;
    }

   private:
    hid_t id_;
    herr_t (*close_)(hid_t);
};

hid_t open_file(const std::string& path) {
    // Errors are reported by exception, not on stderr.
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    return H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
}

} // namespace

struct Hdf5Rows::Impl {
    std::string name;
    Handle file;
    Handle dataset;
    Handle space;
    std::array<hsize_t, 2> shape{};

    Impl(const std::string& path, const std::string& dataset_name)
            : name(path + ":" + dataset_name),
              file(open_file(path), H5Fclose),
              dataset(file < 0 ? -1
                               : H5Dopen2(
                                         file,
                                         dataset_name.c_str(),
                                         H5P_DEFAULT),
                      H5Dclose),
              space(dataset < 0 ? -1 : H5Dget_space(dataset), H5Sclose) {
        FLASHGMM_THROW_IF_NOT_FMT(
                file >= 0, "%s is no readable HDF5 file", path.c_str());
        FLASHGMM_THROW_IF_NOT_FMT(
                dataset >= 0,
                "%s has no dataset %s",
                path.c_str(),
                dataset_name.c_str());
        const Handle type(H5Dget_type(dataset), H5Tclose);
        const H5T_class_t kind = H5Tget_class(type);
        FLASHGMM_THROW_IF_NOT_FMT(
                (kind == H5T_FLOAT || kind == H5T_INTEGER) &&
                        H5Sget_simple_extent_ndims(space) == 2,
                "%s is not a two-dimensional dataset of numbers",
                name.c_str());
        H5Sget_simple_extent_dims(space, shape.data(), nullptr);
        FLASHGMM_THROW_IF_NOT_FMT(
                shape[1] >= 1, "%s has rows of no elements", name.c_str());
    }

    void read(int64_t begin, int64_t count, hid_t type, void* out) {
        FLASHGMM_THROW_IF_NOT_FMT(
                begin >= 0 && count >= 0 && begin <= int64_t(shape[0]) - count,
                "rows [%lld, %lld + %lld) of the %lld of %s",
                static_cast<long long>(begin),
                static_cast<long long>(begin),
                static_cast<long long>(count),
                static_cast<long long>(shape[0]),
                name.c_str());
        if (count == 0) {
            return;
        }
        const hsize_t first[2] = {hsize_t(begin), 0};
        const hsize_t size[2] = {hsize_t(count), shape[1]};
        const Handle memory(H5Screate_simple(2, size, nullptr), H5Sclose);
        const bool good =
                H5Sselect_hyperslab(
                        space, H5S_SELECT_SET, first, nullptr, size, nullptr) >=
                        0 &&
                H5Dread(dataset, type, memory, space, H5P_DEFAULT, out) >= 0;
        FLASHGMM_THROW_IF_NOT_FMT(
                good,
                "cannot read rows [%lld, %lld + %lld) of %s",
                static_cast<long long>(begin),
                static_cast<long long>(begin),
                static_cast<long long>(count),
                name.c_str());
    }
};

Hdf5Rows::Hdf5Rows(const std::string& path, const std::string& dataset)
        : impl_(std::make_unique<Impl>(path, dataset)) {}

Hdf5Rows::~Hdf5Rows() = default;

bool Hdf5Rows::available() {
    return true;
}

int64_t Hdf5Rows::size() const {
    return int64_t(impl_->shape[0]);
}

int64_t Hdf5Rows::dim() const {
    return int64_t(impl_->shape[1]);
}

Rows Hdf5Rows::read(int64_t begin, int64_t count) {
    resize_or_throw(
            chunk_,
            uint64_t(std::max<int64_t>(count, 0)) * dim(),
            "a chunk of rows of a file");
    impl_->read(begin, count, H5T_NATIVE_FLOAT, chunk_.data());
    return {count, chunk_.data(), nullptr};
}

Matrix<int32_t> Hdf5Rows::read_ids() {
    Matrix<int32_t> ids{size(), dim(), {}};
    resize_or_throw(ids.values, uint64_t(ids.n) * ids.d, "all ids");
    impl_->read(0, ids.n, H5T_NATIVE_INT32, ids.values.data());
    return ids;
}

} // namespace faiss_flashgmm
