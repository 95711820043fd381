#!/usr/bin/env bash
# Runs the model checks of what cores hand packets over with (crates/handover): every order of the
# threads' steps, with every stale value that the memory model allows. Under a minute; building
# what they need takes as long, once.
#
# usage: tools/loom.sh [arguments of the test program]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Checks are long loops, so they are optimised; but nobody measures them, and without optimisation across
# crates they are built in two thirds of the time.
export CARGO_PROFILE_RELEASE_LTO=off
export CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
export CARGO_PROFILE_RELEASE_DEBUG=0
# Atomics are loom's with this flag, in this folder only: other builds are not touched.
export RUSTFLAGS="${RUSTFLAGS:-} --cfg loom"
cargo test --locked --release -p tailwater-handover --test loom \
    --target-dir "${CARGO_TARGET_DIR:-target}/loom" -- "$@"
