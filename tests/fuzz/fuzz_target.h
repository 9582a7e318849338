#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

/// The function of libFuzzer: must return whatever the bytes are.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace faiss_flashgmm {

/// Valid inputs to begin with.
std::vector<std::vector<uint8_t>> fuzz_seeds();

} // namespace faiss_flashgmm
