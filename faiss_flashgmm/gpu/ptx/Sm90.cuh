#pragma once

#include <cstdint>

#include <faiss_flashgmm/gpu/ptx/Sm80.cuh>

// The instructions of sm_90a that CUDA C++ has no name for; see the PTX ISA
// manual, sections 9.7.13 (mbarrier), 9.7.9 (bulk copies) and 9.7.15 (wgmma).

namespace faiss_flashgmm::gpu::ptx {

// --- mbarrier: counts arrivals and bytes; waiters name the phase's parity ---

__device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(
                         shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

/// Makes initialized barriers visible to the copy engine.
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(
                         shared_address(barrier))
                 : "memory");
}

/// Arrives, and expects so many bytes to be copied before the phase ends.
__device__ __forceinline__ void barrier_arrive_expect(
        uint64_t* barrier,
        uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                         shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_wait(
        uint64_t* barrier,
        uint32_t parity) {
    asm volatile(
            "{\n"
            ".reg .pred done;\n"
            "again:\n"
            "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
            "@done bra finished;\n"
            "bra again;\n"
            "finished:\n"
            "}\n" ::"r"(shared_address(barrier)),
            "r"(parity)
            : "memory");
}

/// Copies contiguous bytes (a multiple of 16) to shared memory; the barrier
/// counts them.
__device__ __forceinline__ void bulk_copy(
        void* shared,
        const void* global,
        uint32_t bytes,
        uint64_t* barrier) {
    asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
            " [%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
            "l"(global),
            "r"(bytes),
            "r"(shared_address(barrier))
            : "memory");
}

// --- warpgroup matrix product ---

template <int kRegisters>
__device__ __forceinline__ void registers_decrease() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void registers_increase() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/** Describes an operand in shared memory: rows of 64 bytes along the inner
 * dimension, in groups of 8 rows that are a stride apart, with the 64-byte
 * swizzle (16-byte chunk c of row r lies at c ^ (r / 2 % 4)). In two words:
 * only the first changes from product to product.
 */
struct Operand {
    uint32_t at; ///< counts in units of 16 bytes
    uint32_t form;

    __device__ static Operand of(uint32_t address, uint32_t stride) {
        constexpr uint32_t kLeading = uint32_t(1) << 16; // unused if swizzled
        constexpr uint32_t kSwizzle64 = uint32_t(2) << 30;
        return {((address & 0x3FFFF) >> 4) | kLeading,
                stride >> 4 | kSwizzle64};
    }
    __device__ Operand operator+(uint32_t chunks) const {
        return {at + chunks, form};
    }
};

/// Before the first product that touches a set of accumulators.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most kPending committed groups are running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending)
                 : "memory");
}

/** c = a b^T (+ c if accumulate) for 64 x 16 fp16 a and 128 x 16 fp16 b.
 *
 * Thread t of the warpgroup holds, in c[4 j + 2 h + i], row
 * 16 (t / 32) + t % 32 / 4 + 8 h and column 8 j + 2 (t % 4) + i.
 */
__device__ __forceinline__ void wgmma_64x128x16(
        float (&c)[64],
        Operand a,
        Operand b,
        bool accumulate) {
    // clang-format off
    asm volatile(
            "{\n"
            ".reg .pred p;\n"
            ".reg .b64 a, b;\n"
            "mov.b64 a, {%64, %65};\n"
            "mov.b64 b, {%66, %67};\n"
            "setp.ne.b32 p, %68, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, "
            "%8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, "
            "%24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, "
            "%40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, "
            "%56, %57, %58, %59, %60, %61, %62, %63"
            "}, a, b, p, 1, 1, 0, 0;\n"
            "}\n"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]),
              "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
              "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
              "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
              "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]),
              "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
              "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]),
              "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),
              "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]),
              "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),
              "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]),
              "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
              "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]),
              "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
              "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]),
              "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
            : "r"(a.at), "r"(a.form), "r"(b.at), "r"(b.form),
              "r"(int(accumulate)));
    // clang-format on
}

/// The same, each warp having its 16 rows of a in registers, as load_matrices()
/// of its four 8 x 8 matrices leaves them: above, below, and both to the right.
__device__ __forceinline__ void wgmma_64x128x16(
        float (&c)[64],
        const uint32_t (&a)[4],
        Operand b,
        bool accumulate) {
    // clang-format off
    asm volatile(
            "{\n"
            ".reg .pred p;\n"
            ".reg .b64 b;\n"
            "mov.b64 b, {%68, %69};\n"
            "setp.ne.b32 p, %70, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, "
            "%8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, "
            "%24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, "
            "%40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, "
            "%56, %57, %58, %59, %60, %61, %62, %63"
            "}, {%64, %65, %66, %67}, b, p, 1, 1, 0;\n"
            "}\n"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]),
              "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
              "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
              "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
              "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]),
              "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
              "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]),
              "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),
              "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]),
              "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),
              "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]),
              "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
              "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]),
              "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
              "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]),
              "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.at), "r"(b.form),
              "r"(int(accumulate)));
    // clang-format on
}

} // namespace faiss_flashgmm::gpu::ptx
