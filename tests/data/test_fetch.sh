#!/usr/bin/env bash
# data/fetch against a server of this machine that does what servers do.
#
# test_fetch.sh data/fetch
set -euo pipefail

fetch=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
server=
trap '[[ -z $server ]] || kill $server; rm -rf "$work"' EXIT
cd "$work"

fail() {
    echo "FAILED: $*" >&2
    cat out.txt >&2
    exit 1
}

# run <exit code> <arguments of fetch>...
run() {
    local code=$1 got=0
    shift
    FLASHGMM_SETS=$work/sets.sh "$fetch" "$@" >out.txt 2>&1 || got=$?
    ((got == code)) || fail "$*: exit code $got, not $code"
}

says() {
    grep -q -- "$1" out.txt || fail "no '$1' in the output"
}

mkdir site
head -c 300000 /dev/urandom >site/whole
head -c 1000 site/whole >site/short
echo "<html>Not here any more</html>" >site/page
# Five rows of three floats, and the first two of them.
printf '\x05\0\0\0\x03\0\0\0' >site/rows.fbin
head -c 60 /dev/urandom >>site/rows.fbin
{ printf '\x02\0\0\0\x03\0\0\0' && tail -c +9 site/rows.fbin | head -c 24; } \
    >two.fbin
# The start of an HDF5 file that says that it has 100 bytes.
{ printf '\x89HDF\r\n\x1a\n\0' && head -c 31 /dev/zero && printf '\x64' &&
    head -c 59 /dev/zero; } >site/set.hdf5
md5=md5:$(md5sum <site/whole | cut -d' ' -f1)

python3 "$here/serve.py" site >port.txt 2>requests.txt &
server=$!
for _ in {1..100}; do
    [[ ! -s port.txt ]] || break
    sleep 0.1
done
address=http://localhost:$(<port.txt)

# set_of <body of the function that gets the set>
set_of() {
    rm -rf sets
    : >requests.txt
    {
        echo "known_sets=(tiny)"
        echo "describe_sets() { echo '  tiny  a set'; }"
        echo "fetch_tiny() { $1; }"
    } >sets.sh
}

echo "--- what it says of itself"
set_of "true"
run 0 --help
says "tiny"
run 2
run 1 large
says "unknown set large"
run 1 --from nowhere tiny
says "nowhere is not a directory"

echo "--- mirrors in order"
set_of "get whole 300000 $md5 $address/missing $address/page \
    $address/wrong/whole $address/whole $address/unused; record whole"
run 0 --to sets tiny
cmp site/whole sets/tiny/whole || fail "another file"
says "not whole"
! grep -q unused requests.txt || fail "asked a mirror too many"
run 0 --to sets tiny
says "whole is there"
printf 'x' | dd of=sets/tiny/whole conv=notrunc status=none
cp sets/tiny/whole site/changed
set_of "get whole 300000 - $address/changed; record whole"
run 0 --to sets tiny
printf 'y' | dd of=sets/tiny/whole conv=notrunc status=none
run 1 --to sets tiny
says "files changed"

echo "--- nothing but wrong files"
for wrong in short page wrong/whole missing; do
    set_of "get whole 300000 $md5 $address/$wrong"
    run 1 --to sets tiny
    says "whole is not to be had"
    [[ ! -e sets/tiny/whole ]] || fail "kept a wrong file ($wrong)"
done

echo "--- a line that breaks"
for bytes in 300000 -; do
    set_of "get whole $bytes $md5 $address/breaks/whole"
    run 0 --to sets tiny
    cmp site/whole sets/tiny/whole || fail "another file"
    (($(grep -c bytes= requests.txt) >= 2)) || fail "did not continue"
done

echo "--- the rest of an earlier run"
set_of "get whole 300000 $md5 $address/dies/whole"
run 1 --to sets tiny
says "run again"
mv sets/tiny/whole.part half
set_of "get whole 300000 $md5 $address/whole"
mkdir -p sets/tiny
mv half sets/tiny/whole.part
run 0 --to sets tiny
grep -q bytes=150000- requests.txt || fail "did not keep what there was"
for where in "" plain/; do # plain: from the start alone
    set_of "get whole 300000 $md5 $address/${where}whole"
    mkdir -p sets/tiny
    head -c 200000 site/whole >sets/tiny/whole.part
    run 0 --to sets tiny
    cmp site/whole sets/tiny/whole || fail "another file (${where})"
done
grep -q bytes=200000- requests.txt || fail "did not ask for the rest"
set_of "get whole - $md5 $address/missing"
mkdir -p sets/tiny
cp site/whole sets/tiny/whole.part
run 0 --to sets tiny

echo "--- the first rows of a larger file"
set_of "get rows.fbin 32 - $address/rows.fbin; set_rows rows.fbin 2 3"
run 0 --to sets tiny
cmp two.fbin sets/tiny/rows.fbin || fail "other rows"
run 0 --to sets tiny
cmp two.fbin sets/tiny/rows.fbin || fail "other rows the second time"
set_of "get rows.fbin 32 - $address/rows.fbin; set_rows rows.fbin 2 4"
run 1 --to sets tiny
says "not of 4 columns"

echo "--- sizes that files tell themselves"
set_of "get set.hdf5 hdf5 - $address/set.hdf5"
run 0 --to sets tiny
head -c 99 site/set.hdf5 >site/cut.hdf5
for wrong in cut.hdf5 page; do
    set_of "get set.hdf5 hdf5 - $address/$wrong"
    run 1 --to sets tiny
done

echo "--- files that came another way"
mkdir "on disk"
cp site/whole site/rows.fbin "on disk"
set_of "get whole 300000 $md5 $address/missing $address/whole
    get rows.fbin 32 - $address/rows.fbin; set_rows rows.fbin 2 3"
run 0 --from "on disk" --to sets tiny
cmp site/whole sets/tiny/whole || fail "another file"
cmp two.fbin sets/tiny/rows.fbin || fail "other rows"
[[ ! -s requests.txt ]] || fail "used the network"
for cut in 299999 0; do
    head -c $cut site/whole >"on disk/whole"
    set_of "get whole 300000 $md5 $address/whole"
    run 1 --from "on disk" --to sets tiny
    says "not to be had from .*on disk"
done

echo "--- the real sets"
mkdir real
echo "no vectors" >real/sift_base.fvecs
for set in sift1m deep10m glove100; do
    "$fetch" --from real --to sets $set >out.txt 2>&1 && fail "got $set"
    says "is not to be had"
done
echo "all good"
