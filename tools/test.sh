#!/usr/bin/env bash
# Runs `cargo test` and reports why tests were skipped: a test that lacks a program or data passes, and prints a line that
# starts with "skipped", which the test runner would hide.
#
# usage: tools/test.sh CARGO-ARGUMENTS... [-- TEST-ARGUMENTS...]
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

cargo_args=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    cargo_args+=("$1")
    shift
done
[ $# -eq 0 ] || shift
# No test program runs for ever, and of one that hangs there is a description.
if command -v python3 >/dev/null; then
    host=$(rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)
    export "CARGO_TARGET_${host}_RUNNER=$PWD/tools/bounded.py"
fi
cargo test --no-fail-fast "${cargo_args[@]}" -- --show-output "$@" 2>&1 | only_skips
