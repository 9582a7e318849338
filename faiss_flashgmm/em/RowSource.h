#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <faiss_flashgmm/em/Rows.h>

namespace faiss_flashgmm {

/** Where training rows come from: memory, a file, a generator.
 *
 * Rows are read in chunks, in any order and several times, and are the same
 * every time. A source is used by one thread at a time.
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

    /// Whether rows come with weights.
    virtual bool weighted();

    /** Copies rows by index, as floats, to host memory.
     *
     * @param x         output, size indices.size() * dim(), or null
     * @param weights   output, size indices.size(), or null
     */
    virtual void gather(
            std::span<const int64_t> indices,
            float* x,
            float* weights);
};

/** The same as read(), as floats: in place if that is what they are, else
 * converted into `buffer`. Of host memory.
 */
const float* read_floats(
        RowSource& source,
        int64_t begin,
        int64_t count,
        std::vector<float>& buffer);

/// Rows in the caller's host memory, which must outlive the source. No copy.
class MemoryRows : public RowSource {
   public:
    MemoryRows(int64_t n, int64_t d, RowView x, const float* weights = nullptr);

    int64_t size() const override {
        return n_;
    }
    int64_t dim() const override {
        return d_;
    }
    Rows read(int64_t begin, int64_t count) override;
    void gather(std::span<const int64_t> indices, float* x, float* weights)
            override;

   private:
    int64_t n_;
    int64_t d_;
    RowView x_;
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
    bool weighted() override {
        return base_.weighted();
    }
    Rows read(int64_t begin, int64_t count) override;
    void gather(std::span<const int64_t> indices, float* x, float* weights)
            override;

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
