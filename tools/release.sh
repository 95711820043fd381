#!/usr/bin/env bash
# Builds the program that is released, with HiGHS in it, and packs it with its licence and examples as
# target/tailwater-VERSION-MACHINE.tar.gz. The solver is linked statically: users need no compiler and no package of it.
#
# usage: tools/release.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    echo "release: $*" >&2
    exit 1
}

tools/features.sh milp || fail "HiGHS cannot be built: expected cmake, a C++ compiler and libclang (\`make deps\`)"
target=${CARGO_TARGET_DIR:-target}
cargo build --release --locked -p tailwater --features milp
program=$target/release/tailwater

# The program has its solver, and needs no library that a server lacks.
"$program" place examples/place/slos.yaml --cluster examples/place/cluster.yaml --optimal >/dev/null ||
    fail "the solver of $program does not work"
others=$(ldd "$program" | awk '{print $1}' | grep -vE '^(linux-vdso|/lib|libc\.|libm\.|libgcc_s\.|libstdc\+\+\.)' || true)
[ -z "$others" ] || fail "expected a program that needs only the C and C++ libraries, found" $others

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
name=tailwater-$version-$(uname -m)
rm -rf "${target:?}/$name"
mkdir -p "$target/$name"
cp "$program" LICENSE README.md CHANGELOG.md "$target/$name/"
cp -r examples "$target/$name/"
tar -C "$target" -czf "$target/$name.tar.gz" "$name"
rm -r "${target:?}/$name"
echo "$target/$name.tar.gz"
