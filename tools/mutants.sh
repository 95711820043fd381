#!/usr/bin/env bash
# Changes the lines that a branch changed, one mutation at a time, and reports those that no test notices. Takes minutes to
# hours; continuous integration does not run it.
#
# usage: tools/mutants.sh [BASE] [arguments of cargo-mutants]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! cargo mutants --version >/dev/null 2>&1; then
    echo "cargo-mutants is not installed: cargo install --locked cargo-mutants" >&2
    exit 2
fi
base=${1:-main}
[ $# -eq 0 ] || shift
diff=$(mktemp)
trap 'rm -f "$diff"' EXIT
git diff "$(git merge-base "$base" HEAD)" -- '*.rs' >"$diff"
if [ ! -s "$diff" ]; then
    echo "no Rust line differs from $base"
    exit
fi
# Binaries' tests start processes and traffic: unit tests notice most mutations, in a tenth of the time.
cargo mutants --in-diff "$diff" --output target "$@" -- --lib --bins
