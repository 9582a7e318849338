#pragma once

/// The matrix product of the BLAS, which brings no header of its own.
extern "C" int sgemm_(
        const char* transa,
        const char* transb,
        const int* m,
        const int* n,
        const int* k,
        const float* alpha,
        const float* a,
        const int* lda,
        const float* b,
        const int* ldb,
        const float* beta,
        float* c,
        const int* ldc);
