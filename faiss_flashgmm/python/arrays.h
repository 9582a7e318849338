#pragma once

// What all parts of the Python module use: arrays, signals, names.

#include <cstddef>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

namespace nb = nanobind;

template <class T, int Dimensions>
using Array = nb::
        ndarray<const T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;

template <class T>
using Output = nb::ndarray<nb::numpy, T>;

/// An array that owns the values.
template <class T>
Output<T> to_numpy(std::vector<T>&& values, std::vector<size_t> shape) {
    auto* const owned = new std::vector<T>(std::move(values));
    const nb::capsule owner(owned, [](void* memory) noexcept {
        delete static_cast<std::vector<T>*>(memory);
    });
    return Output<T>(owned->data(), shape.size(), shape.data(), owner);
}

/// Ctrl-C ends a computation at the next chunk of rows.
inline void check_signals() {
    if (PyErr_CheckSignals() != 0) {
        throw nb::python_error();
    }
}

template <class T>
T choose(
        const std::string& name,
        const char* what,
        std::initializer_list<std::pair<const char*, T>> choices) {
    std::string known;
    for (const auto& [choice, value] : choices) {
        if (name == choice) {
            return value;
        }
        known += std::string(known.empty() ? "'" : ", '") + choice + "'";
    }
    FLASHGMM_THROW_FMT(
            "%s '%s' is none of %s", what, name.c_str(), known.c_str());
}

} // namespace faiss_flashgmm
