#!/usr/bin/env bash
# Builds the GPU benchmarks (nvcc and g++; no FAISS, no CMake), checks against
# fp64 and times it, and its peers where their sources are given.
#
#     benchs/bench_gpu.sh [--flash-gmm DIR] [--flash-kmeans DIR] [--faiss]
#                         [--cuvs libcuvs_c.so] [--data FILE]...
#
# Prints a table; JSON lines go to build/bench_gpu/results/.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
out=$root/build/bench_gpu
results=$out/results
peers=()
data=()
while (($#)); do
    case $1 in
    --flash-gmm | --flash-kmeans | --cuvs) peers+=("$1" "$(realpath "$2")") ;;
    --data) data+=("$(realpath "$2")") ;;
    --faiss)
        peers+=("$1")
        shift
        continue
        ;;
    *)
        sed -n '2,9s/^# \{0,1\}//p' "$0"
        exit 2
        ;;
    esac
    shift 2
done

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
cuda=$(dirname "$(dirname "$(realpath "$nvcc")")")
mkdir -p "$out" "$results"
cd "$root"

sources=(
    benchs/gpu_rows.cpp
    faiss_flashgmm/cpu/ReferenceBackend.cpp
    faiss_flashgmm/em/*.cpp
    faiss_flashgmm/gpu/*.cpp
    faiss_flashgmm/gpu/kernels/*.cu
    faiss_flashgmm/gpu/utils/*.cpp
    faiss_flashgmm/utils/Error.cpp
    faiss_flashgmm/utils/memory.cpp)
compile() {
    local object=$2/${1//\//_}.o
    case $1 in
    *.cu) "$3" -std=c++20 -O3 -lineinfo -I. \
        -gencode=arch=compute_90a,code=sm_90a -c "$1" -o "$object" ;;
    *) g++ -std=c++20 -O3 -fopenmp -I. -I"$4/include" -c "$1" -o "$object" ;;
    esac
}
export -f compile
rm -f "$out"/*.o
printf '%s\n' "${sources[@]}" |
    xargs -P "$(nproc)" -I{} bash -c 'compile "$@"' _ {} "$out" "$nvcc" "$cuda"
for program in bench_gpu bench_gpu_fit; do
    g++ -std=c++20 -O3 -fopenmp -I. -I"$cuda/include" -o "$out/$program" \
        "benchs/$program.cpp" "$out"/*.o -L"$cuda/lib64" \
        -lcudart_static -ldl -lrt -lpthread
done

fit() {
    "$out/bench_gpu_fit" --json "$results/bench_gpu_fit.jsonl" "$@"
}
run() {
    "$out/bench_gpu" --json "$results/bench_gpu.jsonl" "$@"
}
for k in 1024 4096; do
    run --k "$k"
    for file in "${data[@]}"; do
        run --k "$k" --data "$file"
    done
done
run --k 1024 --precision fp32
run --k 1024 --deterministic 1
run --k 1024 --precision reference --runs 10 --warm-up 1
for rows in device pinned pageable; do
    run --k 1024 --rows "$rows" --check-rows 100
done
for type in float16 uint8; do
    run --k 1024 --rows pinned --type "$type" --check-rows 100
done
fit --k 1024
fit --k 1024 --type uint8
fit --k 1024 --init kmeans_pp
fit --k 1024 --init lloyd
fit --stream 100000000 --n 4000000 --d 96 --k 1024 --fit 3
fit --stream 100000000 --n 4000000 --d 96 --k 1024 --fit 3 --type uint8
run --n 10000000 --d 96 --k 4096 --warm-up 4 --runs 10 --check-rows 200
run --n 10000000 --d 96 --k 16384 --warm-up 4 --runs 10 --check-rows 50
run --d 256 --k 1024 --check-rows 100
run --d 768 --k 4096 --warm-up 4 --runs 10 --check-rows 100
run --d 1536 --k 1024 --warm-up 4 --runs 10 --check-rows 100
if [[ $(nvidia-smi --list-gpus | wc -l) -gt 1 ]]; then
    for devices in 1 2; do
        run --n 10000000 --d 96 --k 4096 --devices "$devices" --check-rows 50
    done
fi
python3 benchs/bench_gpu_peers.py "${peers[@]}" --json "$results/peers.jsonl"
