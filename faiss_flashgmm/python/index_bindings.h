#pragma once

#include <nanobind/nanobind.h>

namespace faiss_flashgmm {

/// The index and the choice of lists, over the FAISS that is linked in.
void bind_index(nanobind::module_& m);

} // namespace faiss_flashgmm
