#!/usr/bin/env bash
# Builds and runs a program that uses this project, the way a user would.
#
#   run.sh find_package <source dir> <work dir> <build dir> <version>
#   run.sh pkg_config   <source dir> <work dir> <build dir> <version>
#   run.sh subdirectory <source dir> <work dir>
set -euo pipefail

how=$1
source_dir=$2
work_dir=$3
consumer=$source_dir/tests/consumer
prefix=$work_dir/prefix
rm -rf "$work_dir"
mkdir -p "$work_dir"

build_with_cmake() {
    cmake -S "$consumer" -B "$work_dir/build" -DCMAKE_BUILD_TYPE=Release "$@"
    cmake --build "$work_dir/build" --parallel --target consumer
    "$work_dir/build/consumer"
}

case $how in
    find_package)
        cmake --install "$4" --prefix "$prefix"
        build_with_cmake -DCMAKE_PREFIX_PATH="$prefix" -DFLASHGMM_VERSION="$5"
        ;;
    pkg_config)
        cmake --install "$4" --prefix "$prefix"
        pc_dir=$(dirname "$(find "$prefix" -name faiss_flashgmm.pc)")
        export PKG_CONFIG_PATH=$pc_dir
        pkg-config --exact-version="$5" faiss_flashgmm
        read -ra flags < <(pkg-config --cflags --libs faiss_flashgmm)
        "${CXX:-c++}" -std=c++20 "$consumer/main.cpp" "${flags[@]}" \
            -o "$work_dir/consumer"
        LD_LIBRARY_PATH=$(pkg-config --variable=libdir faiss_flashgmm) \
            "$work_dir/consumer"
        ;;
    subdirectory)
        build_with_cmake -DFLASHGMM_SOURCE_DIR="$source_dir"
        ;;
    *)
        echo "unknown way to consume: $how" >&2
        exit 2
        ;;
esac
