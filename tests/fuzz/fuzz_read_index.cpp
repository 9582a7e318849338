// Whatever bytes read_index() is given, it gives an index or an exception, and
// takes no more memory than the bytes are worth.
//
// With libFuzzer (clang), an ordinary target. Otherwise mutate.cpp drives it.

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include <faiss/IndexFlat.h>
#include <faiss/impl/FaissException.h>
#include <faiss/impl/io.h>

#include <faiss_flashgmm/IndexIVFMultiAssign.h>
#include <faiss_flashgmm/index_io.h>
#include <faiss_flashgmm/utils/Checksum.h>

#include "fuzz/fuzz_target.h"

namespace faiss_flashgmm {

namespace {

// Where the parts of a file are, see docs/files.md.
constexpr size_t kSizePlace = 16;
constexpr size_t kChecksumPlace = 24;
constexpr size_t kHeaderPlace = 32;

using Bytes = std::vector<uint8_t>;

const Bytes& valid_file() {
    static const Bytes bytes = [] {
        constexpr int d = 4, nlist = 4, n = 40;
        std::vector<float> rows(n * d);
        for (size_t i = 0; i < rows.size(); i++) {
            rows[i] = float(i * 7919 % 101) / 101;
        }
        faiss::IndexFlatL2 quantizer(d);
        IndexIVFFlatMultiAssign index(&quantizer, d, nlist);
        index.cp.min_points_per_centroid = 1;
        index.cp.niter = 2;
        index.train(n, rows.data());
        index.assigner.policy = AssignPolicy::nearest;
        index.add(n, rows.data());
        faiss::VectorIOWriter writer;
        faiss_flashgmm::write_index(&index, &writer);
        return writer.data;
    }();
    return bytes;
}

uint64_t word_at(const Bytes& bytes, size_t place) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + place, sizeof(word));
    return word;
}

/// Makes the checksum of the header right, so that its content is looked at.
void repair_header(Bytes& bytes) {
    if (bytes.size() < kHeaderPlace) {
        return;
    }
    const uint64_t size = std::min<uint64_t>(
            word_at(bytes, kSizePlace), bytes.size() - kHeaderPlace);
    Checksum checksum;
    checksum.add(bytes.data() + kHeaderPlace, size);
    const uint64_t value = checksum.value();
    std::memcpy(bytes.data() + kChecksumPlace, &value, sizeof(value));
}

void use(const faiss::Index& index) {
    const std::vector<float> query(index.d);
    float distances[3];
    idx_t labels[3];
    index.search(1, query.data(), 3, distances, labels);
}

} // namespace

std::vector<Bytes> fuzz_seeds() {
    // The first byte chooses whether the header is repaired.
    std::vector<Bytes> seeds;
    for (uint8_t repaired : {0, 1}) {
        Bytes seed(1, repaired);
        seed.insert(seed.end(), valid_file().begin(), valid_file().end());
        seeds.push_back(std::move(seed));
        // mostly header
        seeds.emplace_back(
                seeds.back().begin(),
                seeds.back().begin() + 1 + kHeaderPlace +
                        word_at(valid_file(), kSizePlace));
    }
    return seeds;
}

} // namespace faiss_flashgmm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace faiss_flashgmm;
    if (size == 0) {
        return 0;
    }
    faiss::VectorIOReader reader;
    reader.data.assign(data + 1, data + size);
    if (data[0] & 1) {
        repair_header(reader.data);
    }
    try {
        use(*faiss_flashgmm::read_index(&reader));
    } catch (const faiss::FaissException&) {
    }
    return 0;
}
