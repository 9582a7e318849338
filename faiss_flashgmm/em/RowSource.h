#pragma once

#include <cstdint>
#include <vector>

namespace faiss_flashgmm {

/// A view of consecutive rows.
struct Rows {
    int64_t n = 0;
    const float* x = nullptr;       ///< size n * d, row-major
    const float* weights = nullptr; ///< size n, or null: all 1
};

/** Where training rows come from: memory, a file, a generator.
 *
 * Rows are read in chunks, in any order and several times. A source is used
 * by one thread at a time.
 */
class RowSource {
   public:
    virtual ~RowSource() = default;

    virtual int64_t size() const = 0; ///< number of rows
    virtual int64_t dim() const = 0;  ///< dimension of a row

    /** Rows [begin, begin + count), with begin + count <= size().
     *
     * The view stays valid until the next call.
     */
    virtual Rows read(int64_t begin, int64_t count) = 0;
};

/// Rows in the caller's memory, which must outlive the source. No copy.
class MemoryRows : public RowSource {
   public:
    MemoryRows(
            int64_t n,
            int64_t d,
            const float* x,
            const float* weights = nullptr);

    int64_t size() const override {
        return n_;
    }
    int64_t dim() const override {
        return d_;
    }
    Rows read(int64_t begin, int64_t count) override;

   private:
    int64_t n_;
    int64_t d_;
    const float* x_;
    const float* weights_;
};

/// A subset of the rows of another source, by index: only the chunk that is
/// being read is copied.
class SampledRows : public RowSource {
   public:
    /// @param indices  rows of base, increasing
    SampledRows(RowSource& base, std::vector<int64_t> indices);

    int64_t size() const override {
        return int64_t(indices_.size());
    }
    int64_t dim() const override {
        return base_.dim();
    }
    Rows read(int64_t begin, int64_t count) override;

   private:
    RowSource& base_;
    std::vector<int64_t> indices_;
    std::vector<float> x_;
    std::vector<float> weights_;
};

/// count different indices below n, increasing, uniformly at random; all of
/// them if count >= n. The same for the same seed on every machine.
std::vector<int64_t> sample_indices(int64_t n, int64_t count, uint64_t seed);

} // namespace faiss_flashgmm
