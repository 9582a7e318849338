# shellcheck shell=bash
# Completion of flashgmm for bash: commands, their options, and files. Asks the
# program itself, so it knows what this version knows.

_flashgmm() {
    local word=${COMP_WORDS[COMP_CWORD]} command=
    ((COMP_CWORD > 1)) && command=${COMP_WORDS[1]}
    local words
    if [[ -z $command ]]; then
        words="--help --version $("${COMP_WORDS[0]}" --help 2>/dev/null |
            sed -n '/^Subcommands:/,/^$/s/^  \([a-z]*\) .*/\1/p')"
    elif [[ $word == -* ]]; then
        words=$("${COMP_WORDS[0]}" "$command" --help 2>/dev/null |
            sed -n 's/^  \(-[^ ]*\).*/\1/p' | tr ',' ' ')
    else
        compopt -o default
        COMPREPLY=()
        return
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -F _flashgmm flashgmm
