#!/usr/bin/env bash
# The program, from a file of vectors to a measured search, and what it does
# with wrong input.
#
# test_flashgmm.sh flashgmm DATA_DIRECTORY
set -euo pipefail

flashgmm=$(realpath "$1")
data=$(realpath "$2")
plot=$(realpath "$(dirname "$0")/../../benchs/plot.py")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

base=$data/sift10k_base.bvecs
queries=$data/sift10k_query.bvecs
truth=$data/sift10k_groundtruth.ivecs

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# expect_error <code> <pattern> <arguments of flashgmm>...
expect_error() {
    local code=$1 pattern=$2 got=0
    shift 2
    "$flashgmm" "$@" >out.txt 2>err.txt || got=$?
    ((got == code)) || fail "$*: exit code $got, not $code: $(cat err.txt)"
    grep -q -- "$pattern" err.txt ||
        fail "$*: no '$pattern' in: $(cat err.txt out.txt)"
}

# field <name>: a number of the JSON line on stdin
field() {
    sed -n "s/.*\"$1\": \\([-0-9.e+]*\\).*/\\1/p"
}

# at_least <value> <bound> <what>
at_least() {
    awk -v a="$1" -v b="$2" 'BEGIN { exit !(a >= b) }' ||
        fail "$3: $1 is less than $2"
}

echo "--- vectors to answers in three commands"
"$flashgmm" build "$base" -o base.index --index 'IVF64_GMM,Flat,MA(posterior)' \
    --iterations 5 --json >build.json
at_least "$(field entries_per_vector <build.json)" 1.05 "entries a vector"
"$flashgmm" search base.index "$queries" -k 10 --nprobe 64 -o found.ivecs
"$flashgmm" eval base.index "$queries" "$truth" --nprobe 1,8,64 --json >eval.json
(($(wc -l <eval.json) == 3)) || fail "eval prints one line an nprobe"
at_least "$(sed -n 2p eval.json | field recall)" 0.9 "recall at nprobe 8"
at_least "$(sed -n 3p eval.json | field recall)" 0.999 "recall of all lists"

echo "--- all lists of a flat index hold the exact neighbours"
"$flashgmm" groundtruth "$base" "$queries" -k 10 -o exact.ivecs \
    --distances exact.fvecs
"$flashgmm" search base.index "$queries" -k 10 --nprobe 64 -o found.ivecs \
    --distances found.fvecs
cmp exact.fvecs found.fvecs || fail "distances of the exact neighbours"

echo "--- nprobe reaches the lists below a refinement"
"$flashgmm" build "$base" -o refined.index --index 'IVF64_GMM,SQ8,RFlat' \
    --iterations 2
"$flashgmm" eval refined.index "$queries" "$truth" --nprobe 1,64 --json \
    >eval.json
at_least 0.9 "$(sed -n 1p eval.json | field recall)" "recall of one list"
at_least "$(sed -n 2p eval.json | field recall)" 0.99 "recall, refined"
"$flashgmm" search refined.index "$queries" -k 10 --nprobe 1 -o one.ivecs
"$flashgmm" search refined.index "$queries" -k 10 --nprobe 64 -o all.ivecs
! cmp -s one.ivecs all.ivecs || fail "search ignores nprobe"

echo "--- a GPU finds the same, or it is said why not"
gpu=("$flashgmm" groundtruth "$base" "$queries" -k 10 -o gpu.ivecs
    --distances gpu.fvecs --device cuda)
if "${gpu[@]}" 2>err.txt; then
    cmp exact.fvecs gpu.fvecs || fail "distances on the GPU"
else
    grep -q CUDA err.txt || fail "no reason in: $(cat err.txt)"
    [[ ! -e gpu.ivecs ]] || fail "a file without neighbours"
fi

echo "--- the same seed gives the same index, another one another"
for run in a b; do
    "$flashgmm" build "$base" --rows 2000 -o $run.index --seed 7 \
        --index 'IVF16_GMM,Flat,MA(nearest)' --iterations 3 >/dev/null
done
cmp a.index b.index || fail "two runs of one seed differ"
"$flashgmm" build "$base" --rows 2000 -o c.index --seed 8 \
    --index 'IVF16_GMM,Flat,MA(nearest)' --iterations 3 >/dev/null
cmp -s a.index c.index && fail "the seed changes nothing"

echo "--- a mixture and its components"
"$flashgmm" fit "$base" -k 16 -o mixture.npy --iterations 5 \
    --sample 0 --json >fit.json
"$flashgmm" assign "$base" mixture.npy -m 2 -o ids.ivecs -r shares.fvecs --json \
    >assign.json
# The last iteration reports the likelihood before its own step.
at_least "$(field log_likelihood <assign.json)" \
    "$(field log_likelihood <fit.json)" "log-likelihood"
(($(stat -c %s ids.ivecs) == 10000 * 12)) || fail "two ids a row"
expect_error 1 "has 16 components" assign "$base" mixture.npy -m 17 -o x.ivecs
expect_error 1 "no mixture" assign "$base" "$truth" -o x.ivecs

echo "--- formats"
"$flashgmm" convert "$base" copy.npy --type uint8 >/dev/null
"$flashgmm" convert copy.npy copy.bvecs >/dev/null
cmp "$base" copy.bvecs || fail "bvecs -> npy -> bvecs"
"$flashgmm" convert "$base" unit.f16bin --normalize >/dev/null
"$flashgmm" info "$base" unit.f16bin base.index mixture.npy --json >info.json
(($(wc -l <info.json) == 4)) || fail "info prints one line a file"
at_least "$(sed -n 2p info.json | field least_norm)" 0.999 "norms of unit rows"
(($(sed -n 3p info.json | field n) == 10000)) || fail "info: vectors"
grep -q 'IVF64_GMM,Flat' info.json || fail "info: the index"

echo "--- bench: scans foretell searches, and no row is measured twice"
bench=("$flashgmm" bench sift10k --data "$data" --seeds 1 --timed 20
    --centroids "k-means,tied+uniform" --policy single --policy posterior
    --policy "soar,1.5" --codec Flat --codec "SQ8,RFlat" -o rows.jsonl)
"${bench[@]}" >table.txt
cp rows.jsonl once.jsonl
"${bench[@]}" >/dev/null
cmp rows.jsonl once.jsonl || fail "a row was measured twice"
python3 - <<'END' || fail "rows of bench"
import json

rows = [json.loads(line) for line in open("rows.jsonl")]
scans = {(r["centroids"], r["policy"]): r for r in rows if r["codec"] == "scans"}
assert len(scans) == 5, scans.keys()  # k-means has no posterior
assert scans["k-means", "single"]["scan_gain_r90"] == 1
soar = scans["k-means", "soar,1.5"]
assert 1.49 < soar["entries_per_vector"] <= 1.5
assert all(a <= b for a, b in zip(soar["distinct"], soar["scanned"]))
flat = [r for r in rows if r["codec"] == "Flat"]
assert len(flat) == 2, flat
refined = [r for r in rows if r["codec"] == "SQ8,RFlat"]
assert len(refined) == 2, refined
for row in flat + refined:
    scan = scans[row["centroids"], row["policy"]]
    for k in ("recall_1", "recall_10", "recall_100"):
        for nprobe, found in zip(row["nprobe"], row[k]):
            foretold = scan[k][scan["nprobe"].index(nprobe)]
            assert abs(found - foretold) < 2e-3, (k, nprobe, found, foretold)
END
python3 "$plot" rows.jsonl >tables.md
grep -q '| k-means | soar,1.5 | 1 | 1.50 |' tables.md || fail "tables of rows"

echo "--- wrong input"
expect_error 1 "sift1m: neither" bench paper --data .
expect_error 1 "'sour'" bench sift10k --data "$data" --policy sour
expect_error 2 "--centroids" bench sift10k --centroids mean
expect_error 2 "subcommand" # no command at all
expect_error 2 "--nonsense" fit "$base" -o x.npy --nonsense
expect_error 2 "--device" fit "$base" -o x.npy --device tpu
expect_error 1 "missing.fvecs" build missing.fvecs -o x.index
expect_error 1 "^flashgmm: cannot write" convert "$base" no/such/x.fbin
expect_error 1 "no uint8" convert unit.f16bin x.u8bin
expect_error 1 "of 128" search base.index mixture.npy -o x.ivecs
head -c 1000 base.index >cut.index
expect_error 1 "cut.index" info cut.index
echo "Hello" >foreign.index
expect_error 1 "foreign.index" search foreign.index "$queries" -o x.ivecs
"$flashgmm" --help >/dev/null
"$flashgmm" build --help | grep -q Example || fail "help shows an example"
[[ -z $(find . -name 'x.*') ]] || fail "an error left a file: $(ls)"

echo "--- an interrupt leaves no file"
"$flashgmm" fit "$base" -k 1000 -o late.npy --iterations 1000000 &
pid=$!
sleep 1
kill -INT $pid
code=0
wait $pid || code=$?
((code == 130)) || fail "exit code $code after an interrupt"
[[ -z $(find . -name 'late*') ]] || fail "an interrupt left a file: $(ls)"
echo "all good"
