#!/usr/bin/env bash
# check_layers.sh passes a clean tree and refuses each planted violation.
#
# test_check_layers.sh <path of check_layers.sh>
set -euo pipefail

check=$1
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

fail() {
    echo "FAILED: $*" >&2
    failures=$((failures + 1))
}

# expect_refused <file> <line of code> <part of the reason>
expect_refused() {
    mkdir -p "$tree/$(dirname "$1")"
    printf '#pragma once\n%s\n' "$2" >"$tree/$1"
    local report
    if report=$("$check" "$tree"); then
        fail "$1 may hold: $2"
    elif [[ $report != "$1:2: "*"$3"* ]]; then
        fail "$1 with: $2: unexpected report: $report"
    fi
    rm "$tree/$1"
}

# expect_passed <file> <line of code>
expect_passed() {
    mkdir -p "$tree/$(dirname "$1")"
    printf '#pragma once\n%s\n' "$2" >"$tree/$1"
    local report
    report=$("$check" "$tree") || fail "$1 with: $2: $report"
    rm "$tree/$1"
}

lib=faiss_flashgmm

expect_passed $lib/Face.h '#include <faiss/Index.h>'
expect_passed $lib/Face.cpp '#include <faiss_flashgmm/cpu/CpuBackend.h>'
expect_passed $lib/cpu/A.cpp '#include <faiss_flashgmm/em/Backend.h>'
expect_passed $lib/em/A.h '// like faiss: #include <faiss/Index.h>'
expect_passed $lib/gpu/A.cu 'void f() { cudaFree(nullptr); }'
expect_passed $lib/gpu/ptx/a.cuh 'void f() { asm volatile("nop;"); }'
expect_passed $lib/tools/main.cpp '#include <faiss_flashgmm/Face.h>'
expect_passed tests/gpu/test_a.cpp 'void f() { cudaFree(nullptr); }'
expect_passed benchs/bench_gpu.cpp 'void f() { cudaFree(nullptr); }'

expect_refused $lib/em/A.h '#include <faiss/Index.h>' 'must not know FAISS'
expect_refused $lib/gpu/A.cu '#include <faiss/Index.h>' 'must not know FAISS'
expect_refused $lib/em/A.h '#include <faiss_flashgmm/cpu/A.h>' 'em must not know cpu'
expect_refused $lib/em/A.h '#include <faiss_flashgmm/compat.h>' 'em must not know face'
expect_refused $lib/cpu/A.h '#  include <faiss_flashgmm/gpu/A.h>' 'cpu must not know gpu'
expect_refused $lib/gpu/A.h '#include <faiss_flashgmm/cpu/A.h>' 'gpu must not know cpu'
expect_refused $lib/io/A.h '#include <faiss_flashgmm/dist/A.h>' 'io must not know dist'
expect_refused $lib/utils/A.h '#include <faiss_flashgmm/em/Mixture.h>' 'utils must not know em'
expect_refused $lib/Face.h '#include <faiss_flashgmm/tools/A.h>' 'face must not know tools'
expect_refused $lib/em/A.h '#include "../cpu/A.h"' 'include by <path'
expect_refused $lib/cpu/A.cpp 'void f() { cudaFree(nullptr); }' 'CUDA call outside gpu/'
expect_refused $lib/Face.cpp 'int e = cudaDeviceSynchronize();' 'CUDA call outside gpu/'
expect_refused benchs/bench_em.cpp 'void f() { cudaFree(nullptr); }' 'CUDA call outside gpu/'
expect_refused $lib/gpu/A.cu 'void f() { asm volatile("nop;"); }' 'inline assembly'
expect_refused $lib/cpu/A.cpp 'void f() { asm volatile("nop"); }' 'inline assembly'

# A room that nobody planned.
mkdir -p "$tree/$lib/misc"
touch "$tree/$lib/misc/A.h"
echo '#pragma once' >"$tree/$lib/misc/A.h"
"$check" "$tree" >/dev/null && fail "an unknown room passes"

((failures == 0)) && echo "check_layers.sh: all planted violations refused"
