#include <faiss_flashgmm/em/RowSource.h>

#include <algorithm>
#include <bit>
#include <unordered_set>

#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Philox.h>
#include <faiss_flashgmm/utils/memory.h>

namespace faiss_flashgmm {

namespace {

void check_range(const RowSource& source, int64_t begin, int64_t count) {
    FLASHGMM_THROW_IF_NOT_FMT(
            begin >= 0 && count >= 0 && begin <= source.size() - count,
            "rows [%ld, %ld + %ld) of a source of %ld rows",
            long(begin),
            long(begin),
            long(count),
            long(source.size()));
}

} // namespace

bool RowSource::weighted() {
    return size() > 0 && read(0, 1).weights != nullptr;
}

void RowSource::gather(
        std::span<const int64_t> indices,
        float* x,
        float* weights) {
    const int64_t count = int64_t(indices.size());
    const int64_t d = dim();
    for (int64_t i = 0; i < count;) {
        // Consecutive indices are read together.
        const int64_t first = indices[i];
        int64_t run = 1;
        while (i + run < count && indices[i + run] == first + run) {
            run++;
        }
        const Rows rows = read(first, run);
        if (x) {
            to_floats(rows.x, run * d, x + i * d);
        }
        for (int64_t j = 0; weights && j < run; j++) {
            weights[i + j] = rows.weights ? rows.weights[j] : 1;
        }
        i += run;
    }
}

const float* read_floats(
        RowSource& source,
        int64_t begin,
        int64_t count,
        std::vector<float>& buffer) {
    const Rows rows = source.read(begin, count);
    if (rows.x.type == RowType::float32) {
        return rows.x.floats();
    }
    const int64_t size = count * source.dim();
    resize_or_throw(buffer, size, "a chunk of rows as floats");
    to_floats(rows.x, size, buffer.data());
    return buffer.data();
}

MemoryRows::MemoryRows(int64_t n, int64_t d, RowView x, const float* weights)
        : n_(n), d_(d), x_(x), weights_(weights) {
    FLASHGMM_THROW_IF_NOT_FMT(n >= 0, "n = %ld rows", long(n));
    FLASHGMM_THROW_IF_NOT_FMT(d >= 1, "d = %ld must be at least 1", long(d));
    FLASHGMM_THROW_IF_NOT_FMT(
            x.data != nullptr || n == 0, "null pointer for %ld rows", long(n));
}

Rows MemoryRows::read(int64_t begin, int64_t count) {
    check_range(*this, begin, count);
    return {count, x_.from(begin * d_), weights_ ? weights_ + begin : nullptr};
}

void MemoryRows::gather(
        std::span<const int64_t> indices,
        float* x,
        float* weights) {
    const int64_t count = int64_t(indices.size());
#pragma omp parallel for if (count >= 1024)
    for (int64_t i = 0; i < count; i++) {
        if (x) {
            to_floats(x_.from(indices[i] * d_), d_, x + i * d_);
        }
        if (weights) {
            weights[i] = weights_ ? weights_[indices[i]] : 1;
        }
    }
}

SampledRows::SampledRows(RowSource& base, std::vector<int64_t> indices)
        : base_(base), indices_(std::move(indices)) {}

Rows SampledRows::read(int64_t begin, int64_t count) {
    check_range(*this, begin, count);
    resize_or_throw(x_, uint64_t(count) * dim(), "a chunk of sampled rows");
    weights_.resize(weighted() ? count : 0);
    float* weights = weights_.empty() ? nullptr : weights_.data();
    base_.gather(std::span(indices_).subspan(begin, count), x_.data(), weights);
    return {count, x_.data(), weights};
}

void SampledRows::gather(
        std::span<const int64_t> indices,
        float* x,
        float* weights) {
    std::vector<int64_t> of_base(indices.size());
    std::transform(
            indices.begin(), indices.end(), of_base.begin(), [&](int64_t i) {
                return indices_[i];
            });
    base_.gather(of_base, x, weights);
}

std::vector<int64_t> sample_indices(int64_t n, int64_t count, uint64_t seed) {
    std::vector<int64_t> indices;
    if (count >= n) {
        resize_or_throw(indices, n, "the indices of the rows");
        for (int64_t i = 0; i < n; i++) {
            indices[i] = i;
        }
        return indices;
    }
    // Floyd's algorithm: each subset is equally likely, memory O(count).
    Philox random(seed, /*stream=*/1);
    indices.reserve(count);
    if (n / 64 <= 4 * count) { // then bits are cheaper than a hash table
        std::vector<uint64_t> chosen(n / 64 + 1, 0);
        for (int64_t j = n - count; j < n; j++) {
            const int64_t candidate = random.below(j + 1);
            const bool taken = chosen[candidate / 64] >> (candidate % 64) & 1;
            const int64_t index = taken ? j : candidate;
            chosen[index / 64] |= uint64_t(1) << (index % 64);
        }
        for (size_t w = 0; w < chosen.size(); w++) {
            for (uint64_t bits = chosen[w]; bits != 0; bits &= bits - 1) {
                indices.push_back(int64_t(w) * 64 + std::countr_zero(bits));
            }
        }
        return indices;
    }
    std::unordered_set<int64_t> chosen;
    chosen.reserve(count);
    for (int64_t j = n - count; j < n; j++) {
        const int64_t candidate = random.below(j + 1);
        const int64_t index = chosen.insert(candidate).second ? candidate : j;
        chosen.insert(index);
        indices.push_back(index);
    }
    std::sort(indices.begin(), indices.end());
    return indices;
}

} // namespace faiss_flashgmm
