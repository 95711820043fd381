#!/usr/bin/env bash
# Tests of what needs HiGHS: plans with the fewest servers, by the library and by `tailwater place --optimal`. With
# `clippy`, lints instead. Skipped, saying so, where it cannot be built.
#
# usage: tools/milp.sh [clippy | TEST ARGUMENTS...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${1:-}" = clippy ]; then
    exec tools/with-milp.sh cargo clippy --locked --all-targets -p tailwater-placement -p tailwater \
        --features tailwater-placement/spec,tailwater/milp -- -D warnings
fi
# Optimised, since the solver's tests are thousands of small programs; without what only takes time to build.
export CARGO_PROFILE_RELEASE_LTO=off
export CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
export CARGO_PROFILE_RELEASE_DEBUG=0
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/milp"
tools/with-milp.sh cargo test --locked --release -p tailwater-placement --features milp --test milp -- "$@"
tools/with-milp.sh cargo test --locked --release -p tailwater --features milp --test place -- "$@"
