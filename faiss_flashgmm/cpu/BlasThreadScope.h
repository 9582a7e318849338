#pragma once

namespace faiss_flashgmm {

/** Keeps the BLAS to one thread, because each of our threads calls it on tiles
 * of its own.
 *
 * The setting belongs to the process: overlapping scopes share it, and the
 * last one out restores what the first one found. Without OpenBLAS nothing is
 * changed (other libraries see that they are called from a parallel region).
 */
class BlasThreadScope {
   public:
    BlasThreadScope();
    ~BlasThreadScope();
    BlasThreadScope(const BlasThreadScope&) = delete;
    BlasThreadScope& operator=(const BlasThreadScope&) = delete;
};

} // namespace faiss_flashgmm
