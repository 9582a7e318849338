#!/usr/bin/env bash
# The manual page and the completion know every command and option.
#
# test_documents.sh flashgmm flashgmm.1 flashgmm.bash
set -euo pipefail

flashgmm=$(realpath "$1")
page=$2

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

commands=(build search eval fit assign groundtruth convert info bench)
for command in "${commands[@]}"; do
    grep -q "^\.SH \"flashgmm $command\"" "$page" || fail "no $command in $page"
done
[[ $(grep -c '^\.SH "flashgmm' "$page") == \
    $("$flashgmm" --help | sed -n '/^Subcommands:/,/^$/p' | grep -c '^  ') ]] ||
    fail "not all commands are in $page"
if command -v groff >/dev/null; then
    warnings=$(groff -man -Tascii -ww -z "$page" 2>&1)
    [[ -z $warnings ]] || fail "$warnings"
fi

# shellcheck source=/dev/null
source "$3"
compopt() { :; } # bash has it in completions only

# complete_words <word>...: what the last of them may be
complete_words() {
    COMP_WORDS=("$flashgmm" "$@")
    COMP_CWORD=$#
    COMPREPLY=()
    _flashgmm
    echo "${COMPREPLY[*]}"
}
for command in "${commands[@]}"; do
    [[ $(complete_words "${command::3}") == "$command" ]] ||
        fail "${command::3}: $(complete_words "${command::3}")"
done
[[ $(complete_words build --it) == --iterations ]] || fail "build --it"
[[ $(complete_words search -) == *"-o --output"*--nprobe* ]] || fail "search -"
[[ -z $(complete_words build base) ]] || fail "files are left to bash"
echo "all good"
