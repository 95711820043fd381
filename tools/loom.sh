#!/usr/bin/env bash
# Model checks of the lock-free code that moves packets between cores (crates/handover): every order of the threads'
# steps, with every stale value that the memory model allows. Under a minute after the first build.
#
# usage: tools/loom.sh [arguments of the test program]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# This flag swaps the atomics for loom's. The target directory of its own keeps other builds valid.
export RUSTFLAGS="${RUSTFLAGS:-} --cfg loom"
cargo test --locked --profile loom -p tailwater-handover --test loom \
    --target-dir "${CARGO_TARGET_DIR:-target}/loom" -- "$@"
