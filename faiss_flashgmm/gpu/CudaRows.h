#pragma once

#include <faiss_flashgmm/em/RowSource.h>

namespace faiss_flashgmm {

/// Rows in memory of a CUDA device, which must outlive the source. A backend
/// on that device reads them in place.
class CudaRows : public RowSource {
   public:
    /// @param weights  size n, in device memory too, or null
    CudaRows(int64_t n, int64_t d, RowView x, const float* weights = nullptr);

    /// Whether a pointer is to memory of a CUDA device; false without one.
    static bool on_device(const void* x);
    /// Waits for all that its device has been given to do: for rows that
    /// another library may still be writing.
    static void wait_for(const void* x);

    int64_t size() const override {
        return n_;
    }
    int64_t dim() const override {
        return d_;
    }
    bool weighted() override {
        return weights_ != nullptr;
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

} // namespace faiss_flashgmm
