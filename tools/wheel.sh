#!/usr/bin/env bash
# Packs the Python package, with the `tailwater` program in it, as a wheel for this machine's kind: target/wheels.
#
# usage: tools/wheel.sh [--profile PROFILE]    cargo's profile; release by default
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

profile=release
case "${1:-}" in
"") ;;
--profile) profile=${2:?"--profile: expected a profile of cargo"} ;;
*)
    echo "error: expected --profile, found $1" >&2
    exit 2
    ;;
esac
target=${CARGO_TARGET_DIR:-$PWD/target}
built=$target/$profile
[ "$profile" != dev ] || built=$target/debug

# In an environment of its own: the system's Python packages stay as they are.
tools=$target/wheel-tools
if ! [ -x "$tools/bin/maturin" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.9,<2'
fi

cargo build --locked --profile "$profile" -p tailwater -p tailwater-python
trap 'rm -rf python/tailwater/bin' EXIT
mkdir -p python/tailwater/bin
install -m 755 "$built/tailwater" python/tailwater/bin/tailwater
# Not checked against manylinux: the package is for machines like this one, as the program is.
"$tools/bin/maturin" build --profile "$profile" --compatibility linux --manifest-path crates/python/Cargo.toml \
    --out "$target/wheels"
