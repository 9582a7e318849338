#pragma once

#include <faiss_flashgmm/em/Backend.h>
#include <faiss_flashgmm/em/Communicator.h>
#include <faiss_flashgmm/em/EMOptions.h>
#include <faiss_flashgmm/em/RowSource.h>

namespace faiss_flashgmm {

/** Expectation-maximization over rows read in chunks.
 *
 * Knows nothing of devices, files or FAISS: the Backend does the arithmetic,
 * the RowSource gives the rows, the Communicator joins peers. The
 * mathematics is in docs/math.md.
 */
class EMSolver {
   public:
    EMSolver(Backend& backend, EMOptions options);
    EMSolver(Backend& backend, EMOptions options, Communicator& communicator);

    /** Fits a mixture of k components.
     *
     * @param rows      this peer's rows; all are checked to be finite
     * @param initial   where to start, or null. It may have fewer than k
     *                  components (the rest are drawn as options.init says),
     *                  and its variances and weights may be empty (then they
     *                  are estimated from the nearest rows).
     */
    EMResult fit(RowSource& rows, int64_t k, const Mixture* initial = nullptr);

   private:
    Backend& backend_;
    EMOptions options_;
    SelfCommunicator self_;
    Communicator& communicator_;
};

} // namespace faiss_flashgmm
