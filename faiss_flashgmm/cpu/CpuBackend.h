#pragma once

#include <memory>

#include <faiss_flashgmm/em/Backend.h>

namespace faiss_flashgmm {

/** E-step on the CPU: OpenBLAS finds the components that matter to a row,
 * exact arithmetic works on these alone.
 *
 * The result is bit-equal for any number of threads and any chunk size.
 */
class CpuBackend : public Backend {
   public:
    CpuBackend();
    ~CpuBackend() override;

    const char* name() const override {
        return "cpu";
    }
    int64_t preferred_chunk(int64_t k, int64_t d) const override;
    void begin(const Mixture& mixture, const Conditioning& conditioning)
            override;
    void add_rows(const Rows& rows) override;
    SufficientStats& finish() override;
    void assign(
            int64_t n,
            RowView x,
            int64_t m,
            int64_t* components,
            float* log_scores,
            float* log_z) override;

   private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

} // namespace faiss_flashgmm
