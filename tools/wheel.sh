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
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export CARGO_TARGET_DIR
built=$CARGO_TARGET_DIR/$profile
[ "$profile" != dev ] || built=$CARGO_TARGET_DIR/debug

# In an environment of its own: the system's Python packages stay as they are.
tools=$CARGO_TARGET_DIR/wheel-tools
if ! [ -x "$tools/bin/maturin" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.9,<2'
fi

cargo build --locked --profile "$profile" -p tailwater
bundled=$PWD/python/tailwater/bin
trap 'rm -rf "$bundled"' EXIT
mkdir -p "$bundled"
install -m 755 "$built/tailwater" "$bundled/tailwater"
# Not checked against manylinux: the package is for machines like this one, as the program is.
cd python
"$tools/bin/maturin" build --profile "$profile" --compatibility linux --out "$CARGO_TARGET_DIR/wheels"
