#!/usr/bin/env bash
# Refuses what breaks the order of the rooms (see ARCHITECTURE.md):
#   - an #include of a room that is not below the including one,
#   - an #include of FAISS outside the FAISS face and what stands on it,
#   - a call of the CUDA runtime outside gpu/, inline assembly outside gpu/ptx/.
#
# check_layers.sh [source dir]: prints "file:line: reason" for each violation,
# and exits with 1 if there is one.
set -euo pipefail

cd "${1:-$(dirname "$0")/..}"

rooms=()
for room in faiss_flashgmm tests benchs examples; do
    [[ -d $room ]] && rooms+=("$room")
done

# shellcheck disable=SC2016  # the dollars are awk's
find "${rooms[@]}" -type f \
    \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) \
    -print0 | sort -z | xargs -0 awk '
BEGIN {
    below["utils"] = " utils "
    below["em"] = " em utils "
    below["cpu"] = " cpu em utils "
    below["gpu"] = " gpu em utils "
    below["dist"] = " dist em utils "
    below["io"] = " io em utils "
    below["face"] = " face cpu gpu dist io em utils "
    below["tools"] = below["face"] "tools "
    below["python"] = below["face"] "python "
    violations = 0
}

# The room of a path below faiss_flashgmm/; its files belong to the face.
function room_of(path,    parts) {
    return split(path, parts, "/") > 1 ? parts[1] : "face"
}

function refuse(reason) {
    printf "%s:%d: %s\n", FILENAME, FNR, reason
    violations++
}

FNR == 1 {
    in_library = FILENAME ~ /^faiss_flashgmm\//
    room = in_library ? room_of(substr(FILENAME, 16)) : "top"
    if (in_library && !(room in below)) {
        refuse("\"" room "\" is not a room")
    }
    gpu = FILENAME ~ /(^|[\/_])gpu/
    ptx = FILENAME ~ /^faiss_flashgmm\/gpu\/ptx\//
}

{
    code = $0
    sub(/\/\/.*/, "", code)
    if (code ~ /^[ \t]*\*/) {
        next
    }
}

in_library && code ~ /^[ \t]*#[ \t]*include[ \t]*"/ {
    refuse("include by <path from the source root>, not by \"...\"")
}

in_library && match(code, /^[ \t]*#[ \t]*include[ \t]*<[^>]*>/) {
    path = substr(code, RSTART, RLENGTH)
    gsub(/.*<|>.*/, "", path)
    if (path ~ /^faiss\// && below[room] !~ / face /) {
        refuse(room " must not know FAISS: <" path ">")
    }
    if (path ~ /^faiss_flashgmm\//) {
        other = room_of(substr(path, 16))
        if (index(below[room], " " other " ") == 0) {
            refuse(room " must not know " other ": <" path ">")
        }
    }
}

!gpu && match(code, /(^|[^A-Za-z0-9_])cu(da|blas|blasLt)?[A-Z][A-Za-z0-9_]*[ \t]*\(/) {
    refuse("CUDA call outside gpu/: " substr(code, RSTART, RLENGTH) "...)")
}

in_library && !ptx && code ~ /(^|[^A-Za-z0-9_])asm([^A-Za-z0-9_]|$)/ {
    refuse("inline assembly outside gpu/ptx/")
}

END { exit violations > 0 }
'
