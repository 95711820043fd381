#!/usr/bin/env bash
# Tests of what needs HiGHS: plans with the fewest servers. Skipped, saying so, where it cannot be built.
#
# usage: tools/milp.sh [TEST ARGUMENTS...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v cmake >/dev/null 2>&1 || ! compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null; then
    echo "skipped, for want of cmake and libclang (\`make deps\` installs them): tests of the feature \`milp\`"
    exit 0
fi
# Optimised, since the solver's tests are thousands of small programs; without what only takes time to build.
export CARGO_PROFILE_RELEASE_LTO=off
export CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
export CARGO_PROFILE_RELEASE_DEBUG=0
cargo test --locked --release -p tailwater-placement --features milp --test milp \
    --target-dir "${CARGO_TARGET_DIR:-target}/milp" -- "$@"
