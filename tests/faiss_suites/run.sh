#!/usr/bin/env bash
# FAISS's own tests, unchanged, over multi-assign indexes.
#
# run.sh <FAISS source directory> [build directory] [mode...]
#
# The sources must be of the version that is installed (Debian 12: v1.7.3, with
# python3-faiss for the Python tests). For each mode of swap.h (stock, single,
# copies, repeats) and each suite it prints how many tests ran and which did
# not pass; the logs are in <build directory>/logs.
set -euo pipefail

(($# >= 1)) || {
    sed -n '2,10s/^# \{0,1\}//p' "$0"
    exit 2
}
faiss_dir=$(realpath "$1")
source_dir=$(realpath "$(dirname "$0")/../..")
build_dir=$(realpath -m "${2:-$source_dir/build/faiss_suites}")
modes=("${@:3}")
((${#modes[@]} > 0)) || modes=(stock single copies repeats)
python=${PYTHON:-/usr/bin/python3}

export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

python_modules=(
    test_search_params test_index test_index_composite test_merge_index
    test_ivflib test_meta_index test_io test_factory test_refine
    test_index_accuracy test_referenced_objects test_contrib
)

cmake -S "$source_dir" -B "$build_dir" -DCMAKE_BUILD_TYPE=Release \
    -DFLASHGMM_FAISS_SUITES="$faiss_dir" >/dev/null
cmake --build "$build_dir" --parallel "${JOBS:-$(nproc)}" \
    --target faiss_suites
suites_dir=$build_dir/tests/faiss_suites
logs=$build_dir/logs
mkdir -p "$logs"

# Prints "<suite> <mode>: <n> tests, failed: <names>".
report() {
    printf '%-24s %-8s %s\n' "$1" "$2" "$3"
}

run_program() {
    local suite=$1 mode=$2 log=$logs/$1.$2.log status=0 kind=suite
    [[ $mode == stock ]] && kind=stock
    FAISS_SUITES_MODE=$mode timeout 900 "$suites_dir/${kind}_$suite" \
        >"$log" 2>&1 || status=$?
    local ran failed
    ran=$(grep -c '^\[ RUN' "$log" || true)
    failed=$(sed -n 's/^\[  FAILED  \] \([A-Za-z0-9_]*\.[A-Za-z0-9_]*\).*/\1/p' \
        "$log" | sort -u | paste -sd' ')
    if ((status > 1)); then
        failed+=" (ended with $status in $(sed -n \
            's/^\[ RUN *\] //p' "$log" | tail -1))"
    fi
    report "$suite" "$mode" "$ran tests, failed: ${failed:-none}"
}

run_module() {
    local suite=$1 mode=$2 log=$logs/$1.$2.log status=0
    FAISS_SUITES_MODE=$mode timeout 1800 "$python" \
        "$source_dir/tests/faiss_suites/run_python.py" \
        "$suites_dir/libsuite_plugin.so" "$faiss_dir" "$suite" \
        >"$log" 2>&1 || status=$?
    local ran failed
    ran=$(sed -n 's/^Ran \([0-9]*\) tests\{0,1\} .*/\1/p' "$log")
    failed=$(sed -n 's/^\(FAIL\|ERROR\): \([^ ]*\) .*/\2/p' "$log" |
        sort -u | paste -sd' ')
    if [[ -z $ran ]]; then
        failed+=" (ended with $status)"
    fi
    report "$suite" "$mode" "${ran:-0} tests, failed: ${failed:-none}"
}

for mode in "${modes[@]}"; do
    for program in "$suites_dir"/suite_test_*; do
        run_program "$(basename "${program#*suite_}")" "$mode"
    done
    for module in "${python_modules[@]}"; do
        if [[ -f $faiss_dir/tests/$module.py ]]; then
            run_module "$module" "$mode"
        fi
    done
done | tee "$build_dir/results.txt"
