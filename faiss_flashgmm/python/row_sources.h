#pragma once

#include <memory>
#include <string>

#include <nanobind/nanobind.h>

#include <faiss_flashgmm/em/Backend.h>
#include <faiss_flashgmm/em/RowSource.h>

namespace faiss_flashgmm {

/** The backend of a device by name: see cuda_devices_of().
 *
 * Throws Error that says how to build with CUDA where this is missing.
 */
std::unique_ptr<Backend> make_backend(const std::string& device);

/// Empty if there is a CUDA device, or what is missing.
std::string why_no_cuda();

/// Rows of a file, for Python.
class File {
   public:
    explicit File(const std::string& path);

    const std::shared_ptr<RowSource>& rows() const {
        return rows_;
    }

   private:
    std::shared_ptr<RowSource> rows_;
};

/// Whether an object is an array in C order of a RowType, in host memory or in
/// that of a CUDA device: DLPack, buffer protocol, __cuda_array_interface__.
bool is_in_place(const nanobind::object& x);

/** Rows of a Python object.
 *
 * @param x         a File; an array that is_in_place(); or an object with
 *                  shape and read(begin, count), which returns float32 arrays.
 *                  Must outlive the source.
 * @param weights   None, or float32 of shape (n,) in memory of the same kind
 * @param device    where the rows are going to be read
 */
std::shared_ptr<RowSource> make_source(
        const nanobind::object& x,
        const nanobind::object& weights,
        const std::string& device);

} // namespace faiss_flashgmm
