#pragma once

#include <cstdint>

// Instructions of sm_80 and later that CUDA C++ has no name for; see the PTX
// ISA manual, sections 9.7.9 (copies) and 9.7.14 (mma).

namespace faiss_flashgmm::gpu::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return uint32_t(__cvta_generic_to_shared(p));
}

/// 2^x to 22 bits; what fp32 cannot hold as a normal number is 0.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// Stores four pairs side by side, and a number behind them, without a branch.
/// Wider stores would take moves to bring their registers together.
__device__ __forceinline__ void store_if(
        bool condition,
        void* to,
        float2 a,
        float2 b,
        float2 c,
        float2 d,
        uint32_t number) {
    asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "setp.ne.u32 p, %0, 0;\n"
            "@p st.global.v2.f32 [%1], {%2, %3};\n"
            "@p st.global.v2.f32 [%1 + 8], {%4, %5};\n"
            "@p st.global.v2.f32 [%1 + 16], {%6, %7};\n"
            "@p st.global.v2.f32 [%1 + 24], {%8, %9};\n"
            "@p st.global.u32 [%1 + 32], %10;\n"
            "}\n" ::"r"(uint32_t(condition)),
            "l"(to),
            "f"(a.x),
            "f"(a.y),
            "f"(b.x),
            "f"(b.y),
            "f"(c.x),
            "f"(c.y),
            "f"(d.x),
            "f"(d.y),
            "r"(number)
            : "memory");
}

// --- asynchronous copies of a thread, in groups ---

/// 16 bytes, past the L1.
__device__ __forceinline__ void async_copy(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         shared_address(shared)),
                 "l"(global)
                 : "memory");
}

__device__ __forceinline__ void async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most kPending committed groups are on their way.
template <int kPending>
__device__ __forceinline__ void async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// --- warp matrix product ---

/// Four 8 x 8 matrices of halves; lane l names row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(
        uint32_t (&to)[4],
        uint32_t shared) {
    asm volatile(
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
            : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
            : "r"(shared)
            : "memory");
}

/** c += a b^T for 16 x 16 fp16 a and 8 x 16 fp16 b.
 *
 * Lane l holds, in c[2 h + i], row l / 4 + 8 h and column 2 (l % 4) + i.
 */
__device__ __forceinline__ void mma_16x8x16(
        float* c,
        const uint32_t (&a)[4],
        uint32_t b0,
        uint32_t b1) {
    asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

} // namespace faiss_flashgmm::gpu::ptx
