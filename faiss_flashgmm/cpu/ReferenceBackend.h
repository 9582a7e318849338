#pragma once

#include <vector>

#include <faiss_flashgmm/em/Backend.h>

namespace faiss_flashgmm {

/** The E-step written down plainly in fp64: every pair, one row at a time.
 * Slow; the yardstick that every other backend is tested against.
 */
class ReferenceBackend : public Backend {
   public:
    const char* name() const override {
        return "reference";
    }
    int64_t preferred_chunk(int64_t, int64_t) const override {
        return 1024;
    }
    void begin(const Mixture& mixture, const Conditioning& conditioning)
            override;
    void add_rows(const Rows& rows) override;
    SufficientStats& finish() override {
        return stats_;
    }
    void assign(
            int64_t n,
            RowView x,
            int64_t m,
            int64_t* components,
            float* log_scores,
            float* log_z) override;

   private:
    /// Fills distances_ and scores_ (natural log, conditioned units) for one
    /// row; returns log Z.
    double score(const float* x);

    Mixture mixture_;
    Conditioning conditioning_;
    SufficientStats stats_;
    std::vector<double> row_;
    std::vector<double> distances_;
    std::vector<double> scores_;
};

} // namespace faiss_flashgmm
