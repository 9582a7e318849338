#!/usr/bin/env bash
# The first C++ example of the README is the main() of the example that is
# compiled and run, line for line.
#
# test_readme.sh README.md readme_example.cpp
set -euo pipefail

# shellcheck disable=SC2016  # these are fences, not commands
quoted=$(sed -n '/^```cpp$/,/^```$/p' "$1" | sed '1d;/^```$/,$d')
compiled=$(sed -n '/^int main() {$/,$p' "$2")
if [[ -z $quoted || $quoted != "$compiled" ]]; then
    diff <(echo "$quoted") <(echo "$compiled") || true
    echo "the README does not quote $2" >&2
    exit 1
fi
