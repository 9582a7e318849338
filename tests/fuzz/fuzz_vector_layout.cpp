// Whatever bytes a vector file holds, its layout is right or an exception.

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>

#include <faiss_flashgmm/io/VectorLayout.h>
#include <faiss_flashgmm/utils/Error.h>

#include "fuzz/fuzz_target.h"

namespace faiss_flashgmm {

namespace {

const char* const kNames[] = {
        "a.fvecs",
        "a.bvecs",
        "a.ivecs",
        "a.fbin",
        "a.f16bin",
        "a.u8bin",
        "a.i8bin",
        "a.ibin",
        "a.npy",
};
constexpr uint8_t kNpy = 8; ///< the last of them

using Bytes = std::vector<uint8_t>;

template <class T>
void append(Bytes& bytes, T value) {
    bytes.resize(bytes.size() + sizeof(T));
    std::memcpy(&bytes[bytes.size() - sizeof(T)], &value, sizeof(T));
}

} // namespace

std::vector<Bytes> fuzz_seeds() {
    std::vector<Bytes> seeds;
    for (uint8_t name = 0; name < kNpy; name++) {
        const VectorFormat format = VectorFormat::of(kNames[name]);
        constexpr uint32_t n = 3, d = 2;
        Bytes seed(1, name);
        if (!format.row_headers) {
            append(seed, n);
            append(seed, d);
        }
        for (uint32_t i = 0; i < n; i++) {
            if (format.row_headers) {
                append(seed, d);
            }
            seed.resize(seed.size() + d * size_of(format.type), 1);
        }
        seeds.push_back(seed);
    }
    Bytes npy(1, kNpy);
    const std::string header =
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }";
    const char magic[] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0};
    npy.insert(npy.end(), magic, magic + sizeof(magic));
    append(npy, uint16_t(118));
    npy.insert(npy.end(), header.begin(), header.end());
    npy.resize(1 + 10 + 117, ' ');
    npy.push_back('\n');
    npy.resize(npy.size() + 3 * 2 * sizeof(float));
    seeds.push_back(npy);
    return seeds;
}

} // namespace faiss_flashgmm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace faiss_flashgmm;
    if (size == 0) {
        return 0;
    }
    const char* name = kNames[data[0] % std::size(kNames)];
    try {
        const VectorLayout layout =
                VectorLayout::parse(name, data + 1, size - 1);
        // what it says is in the file
        const uint64_t end = layout.n == 0
                ? layout.offset
                : layout.offset + (layout.n - 1) * layout.stride +
                        layout.d * size_of(layout.type);
        if (layout.n < 0 || layout.d < 0 || end > size - 1) {
            std::abort();
        }
    } catch (const Error&) {
    }
    return 0;
}
