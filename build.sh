#!/usr/bin/env bash
# One command from a bare Debian 12 to a result. See usage below.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# Threads wait without spinning, which costs dearly on a shared machine.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

usage() {
    cat <<'END'
usage: ./build.sh <command>

  demo           fit mixtures and k-means on real vectors, search, compare;
                 writes build/demo/report.json and build/demo/*.svg
  test           everything that must hold: format, layers, unit tests,
                 AddressSanitizer and UBSan, use from another project
  python [args]  the Python package in an environment of its own, with its
                 tests; args go to pytest
  unit [args]    the unit tests alone; args go to ctest
  asan [args]    the unit tests under the sanitizers; args go to ctest
  faiss [prefix] the unit tests with another FAISS than Debian's: that
                 installed in prefix or $FAISS_PREFIX, or else the sources in
                 $FAISS_SOURCE, which are built once into build/faiss
  build [preset] build a preset of CMakePresets.json (default: release)
  bench [args]   recall against lists, scans, time and memory on the samples in
                 data/: a table, and rows and figures in build/bench; args go
                 to `flashgmm bench small` (default: one seed)
  format         format the sources in place (clang-format 14)
  check          format, layers and shell scripts; builds nothing
  clean          delete build/
  help           this text

Missing Debian packages are installed with apt-get, as root or through sudo.
Builds go to build/<preset>; a second run builds only what changed.
END
}

packages=(
    g++ cmake ninja-build pkg-config
    libfaiss-dev libopenblas-dev libhwy-dev libgtest-dev libhdf5-dev
    libcli11-dev python3-dev python3-venv curl
)

say() {
    printf '\n==> %s\n' "$*"
}

die() {
    printf '\nbuild.sh: %s\n' "$*" >&2
    exit 1
}

have() {
    command -v "$1" >/dev/null
}

# Tools count wherever they come from, libraries as Debian packages.
is_present() {
    case $1 in
        g++ | cmake | pkg-config | curl) have "$1" ;;
        ninja-build) have ninja ;;
        *) [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == \
            installed ]] ;;
    esac
}

ensure_packages() {
    if ! have dpkg-query; then
        say "Not a Debian system: taking for granted ${packages[*]}"
        return
    fi
    local missing=() package
    for package in "${packages[@]}"; do
        is_present "$package" || missing+=("$package")
    done
    ((${#missing[@]} == 0)) && return

    say "Missing packages: ${missing[*]}"
    local by_hand="apt-get install --no-install-recommends ${missing[*]}"
    have apt-get || die "there is no apt-get; install by hand: ${missing[*]}"

    local as_root=()
    if ((EUID != 0)); then
        have sudo || die "not root, and there is no sudo. Run as root:
    $by_hand"
        as_root=(sudo)
        [[ -t 0 ]] || as_root+=(-n)
        "${as_root[@]}" true || die "sudo refused. Run as root:
    $by_hand"
    fi
    as_root+=(env DEBIAN_FRONTEND=noninteractive)
    "${as_root[@]}" apt-get update ||
        die "apt-get update failed: is there a network? Needed: ${missing[*]}"
    "${as_root[@]}" apt-get install -y --no-install-recommends \
        "${missing[@]}" || die "could not install: ${missing[*]}"
}

configure() {
    have ninja && export CMAKE_GENERATOR=${CMAKE_GENERATOR:-Ninja}
    if have ccache; then
        export CMAKE_CXX_COMPILER_LAUNCHER=ccache
        export CMAKE_CUDA_COMPILER_LAUNCHER=ccache
    fi
    # A cache that came along with a moved or copied checkout is of no use.
    local fresh=() cache=build/$1/CMakeCache.txt
    if [[ -f $cache ]] && ! grep -qx "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" \
        "$cache"; then
        fresh=(--fresh)
    fi
    say "Configure $1"
    cmake --preset "$1" "${fresh[@]}" >build/configure.log || {
        cat build/configure.log
        die "could not configure the preset $1"
    }
}

# build <preset> [target]
build() {
    mkdir -p build
    configure "$1"
    say "Build $1${2:+: $2}"
    cmake --build --preset "$1" --parallel "$(nproc)" ${2:+--target "$2"}
}

run_tests() {
    local preset=$1
    shift
    build "$preset"
    say "Test $preset"
    ctest --preset "$preset" --parallel "$(nproc)" "$@"
}

# The package is built and tested as its users install it: by pip, with faiss
# from PyPI.
python_package() {
    local venv=build/python/venv
    say "Python package"
    [[ -x $venv/bin/pip ]] || python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --retries 1 \
        'scikit-build-core>=0.10' 'nanobind>=2.2' numpy pytest tqdm mypy \
        faiss-cpu scikit-learn || return 1
    # With the flags of the other builds, for the sake of ccache.
    "$venv/bin/pip" install --quiet --disable-pip-version-check \
        --no-build-isolation -C cmake.define.FLASHGMM_WERROR="${CI:-OFF}" . ||
        die "could not build the Python package"
    OPENBLAS_NUM_THREADS=1 "$venv/bin/python" -m pytest -q "$@" ||
        die "Python tests failed"
}

# bench [args]: those of `flashgmm bench`, after the sets; by default one seed,
# and 200 queries on one thread, which takes five minutes
bench() {
    (($#)) || set -- --seeds 1 --timed 200
    local out=build/bench venv=build/bench/venv
    build release flashgmm
    mkdir -p "$out"
    say "Bench"
    build/release/faiss_flashgmm/tools/flashgmm bench small --data data \
        -o "$out/rows.jsonl" "$@"
    say "Tables"
    python3 benchs/plot.py "$out/rows.jsonl" | tee "$out/tables.md"
    say "Figures"
    [[ -x $venv/bin/pip ]] || python3 -m venv "$venv"
    if "$venv/bin/pip" install --quiet --disable-pip-version-check \
        --retries 1 matplotlib; then
        "$venv/bin/python" benchs/plot.py "$out/rows.jsonl" --figures "$out"
        echo "$out/recall.svg and others"
    else
        echo "skipped: no package index for matplotlib"
    fi
}

build_faiss() {
    [[ -f $1/faiss/Index.h ]] || die "no sources of FAISS in $1"
    say "Build FAISS from $1"
    cmake -S "$1" -B build/faiss-build -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_INSTALL_PREFIX="$PWD/build/faiss" -DBUILD_SHARED_LIBS=ON \
        -DBUILD_TESTING=OFF -DFAISS_ENABLE_GPU=OFF -DFAISS_ENABLE_PYTHON=OFF \
        -DFAISS_ENABLE_EXTRAS=OFF -DFAISS_ENABLE_MKL=OFF
    cmake --build build/faiss-build --parallel "$(nproc)" --target install
    # FAISS 1.14.2 to 1.15 forget this header.
    local header=faiss/utils/popcount.h
    if [[ -f $1/$header ]]; then
        cp "$1/$header" "build/faiss/include/$header"
    fi
}

# another_faiss [prefix]
another_faiss() {
    local prefix=${1:-${FAISS_PREFIX:-}}
    if [[ -z $prefix ]]; then
        [[ -n ${FAISS_SOURCE:-} ]] ||
            die "give a prefix, or set FAISS_PREFIX or FAISS_SOURCE"
        prefix=$PWD/build/faiss
        [[ -d $prefix ]] || build_faiss "$FAISS_SOURCE"
    fi
    [[ -f $prefix/include/faiss/Index.h ]] || die "no FAISS in $prefix"
    say "Test with the FAISS in $prefix"
    have ninja && export CMAKE_GENERATOR=${CMAKE_GENERATOR:-Ninja}
    local dir=build/other-faiss
    cmake --preset release -B "$dir" -DCMAKE_PREFIX_PATH="$prefix" \
        -DFLASHGMM_BENCHS=OFF -DFLASHGMM_DEMO=OFF
    cmake --build "$dir" --parallel "$(nproc)"
    ctest --test-dir "$dir" --parallel "$(nproc)" --output-on-failure \
        --no-tests=error --label-exclude consumer
}

sources() {
    local rooms=(faiss_flashgmm tests benchs examples)
    {
        git ls-files -- "${rooms[@]}" 2>/dev/null ||
            find "${rooms[@]}" -type f
    } | grep -E '\.(h|cpp|cu|cuh)$'
}

# The result of clang-format depends on its version.
clang_format() {
    local program
    for program in clang-format-14 clang-format; do
        if have "$program" && [[ $("$program" --version) == *"version 14."* ]]
        then
            echo "$program"
            return
        fi
    done
    return 1
}

format() {
    local program
    program=$(clang_format) || die "needs clang-format 14 (clang-format-14)"
    sources | xargs "$program" -i
}

check() {
    local program
    say "Format"
    if program=$(clang_format); then
        sources | xargs "$program" --dry-run --Werror ||
            die "badly formatted; ./build.sh format repairs it"
    else
        echo "skipped: no clang-format 14 (package clang-format-14)"
    fi
    say "Layers"
    scripts/check_layers.sh
    say "Shell scripts"
    if have shellcheck; then
        shellcheck build.sh .ci/run data/fetch data/sets.sh scripts/*.sh \
            tests/*/*.sh faiss_flashgmm/tools/*.sh faiss_flashgmm/tools/*.bash
    else
        echo "skipped: no shellcheck"
    fi
}

main() {
    local command=${1:-help}
    (($# > 0)) && shift
    case $command in
        demo)
            ensure_packages
            build release flashgmm_demo
            say "Demo"
            "$(find build/release -name flashgmm_demo -type f)" data build/demo
            ;;
        test)
            ensure_packages
            check
            run_tests release
            run_tests asan
            if [[ -n ${FAISS_PREFIX:-}${FAISS_SOURCE:-} ]]; then
                another_faiss
            else
                say "Skipped: neither FAISS_PREFIX nor FAISS_SOURCE is set"
            fi
            python_package || say "Skipped: no package index for Python"
            say "All tests passed in $((SECONDS / 60)) min $((SECONDS % 60)) s"
            ;;
        unit)
            ensure_packages
            run_tests release --label-exclude consumer "$@"
            ;;
        asan)
            ensure_packages
            run_tests asan "$@"
            ;;
        faiss)
            ensure_packages
            another_faiss "$@"
            ;;
        build)
            ensure_packages
            build "${1:-release}"
            ;;
        python)
            ensure_packages
            python_package "$@" || die "pip could not install what is needed"
            ;;
        bench)
            ensure_packages
            bench "$@"
            ;;
        format | check)
            "$command"
            ;;
        clean)
            rm -rf build
            ;;
        help | -h | --help)
            usage
            ;;
        *)
            usage >&2
            die "unknown command: $command"
            ;;
    esac
}

main "$@"
