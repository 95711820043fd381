#!/usr/bin/env bash
# Runs all tests and says for each skipped one why: a test without what it needs (a program, data)
# passes, and prints a line that starts with "skipped". The test runner would hide that line.
#
# usage: tools/test.sh [arguments of cargo test, -p PACKAGE among them if not all are meant]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Leaves out what passing tests print, except why they were skipped.
only_skips() {
    local line name='' quiet=
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
        successes:) quiet=yes ;;
        failures: | 'test result:'*) quiet= ;;
        esac
        if [ -z "$quiet" ]; then
            printf '%s\n' "$line"
            continue
        fi
        case $line in
        '---- '*' stdout ----')
            name=${line#---- }
            name=${name% stdout ----}
            ;;
        skipped*)
            # A test of several parts may say so for each.
            [ -z "$name" ] || printf 'test %s %s\n' "$name" "$line"
            name=
            ;;
        esac
    done
}

case " $* " in
*' -p '*) packages=() ;;
*) packages=(--workspace) ;;
esac

cargo test --locked "${packages[@]}" --no-fail-fast "$@" -- --show-output 2>&1 | only_skips
