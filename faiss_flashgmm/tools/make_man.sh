#!/usr/bin/env bash
# The manual page of flashgmm, of what its commands say of themselves.
#
# make_man.sh FLASHGMM >flashgmm.1
set -euo pipefail

flashgmm=$1
version=$("$flashgmm" --version)

# Text as it is: no line of it is a request.
verbatim() {
    echo ".nf"
    sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^\([.']\)/\\\\\&\1/"
    echo ".fi"
}

cat <<END
.TH FLASHGMM 1 "" "faiss_flashgmm $version" "User Commands"
.SH NAME
flashgmm \- Gaussian mixtures as coarse quantizers of FAISS indexes
.SH SYNOPSIS
.B flashgmm
.I COMMAND
[\fIOPTIONS\fR]
.SH DESCRIPTION
END
"$flashgmm" --help | tail -n +2 | verbatim
"$flashgmm" --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z]*\) .*/\1/p' |
    while read -r command; do
        echo ".SH \"flashgmm $command\""
        "$flashgmm" "$command" --help | verbatim
    done
