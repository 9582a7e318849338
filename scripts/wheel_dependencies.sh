#!/usr/bin/env bash
# For cibuildwheel: what the Python package links, in a manylinux container.
# FAISS is built, static, from its sources in $FAISS_SOURCE. Not tested yet.
set -euo pipefail

dnf install -y epel-release
dnf install -y openblas-devel highway-devel

cmake -S "${FAISS_SOURCE:?}" -B /tmp/faiss -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTING=OFF -DFAISS_ENABLE_GPU=OFF \
    -DFAISS_ENABLE_PYTHON=OFF -DFAISS_ENABLE_EXTRAS=OFF
cmake --build /tmp/faiss --parallel "$(nproc)" --target install
