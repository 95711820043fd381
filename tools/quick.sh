#!/usr/bin/env bash
# Checks of a change within a minute: formatting, lints and unit tests of the crates that it touches,
# compared with BASE (default: main where the branch is another one, else HEAD).
#
# usage: tools/quick.sh [BASE]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

base=${1:-}
if [ -z "$base" ]; then
    base=HEAD
    if [ "$(git branch --show-current)" != main ] && git rev-parse --quiet --verify main >/dev/null; then
        base=$(git merge-base main HEAD)
    fi
fi

packages=() tested=()
while read -r crate; do
    [ -f "$crate/Cargo.toml" ] || continue
    name=$(sed -n 's/^name *= *"\(.*\)"/\1/p' "$crate/Cargo.toml" | head -n 1)
    packages+=(-p "$name")
    # Extension modules and the like have no unit tests.
    grep -q '^test = false' "$crate/Cargo.toml" || tested+=(-p "$name")
done < <({
    git diff --name-only "$base"
    git ls-files --others --exclude-standard
} | sed -n 's|^\(crates/[^/]*\)/.*|\1|p' | sort -u)

cargo fmt --all --check
if [ ${#packages[@]} -eq 0 ]; then
    echo "no crate differs from $base"
    exit
fi
cargo clippy --locked "${packages[@]}" --all-targets -- -D warnings
[ ${#tested[@]} -eq 0 ] || cargo test --locked "${tested[@]}" --lib --bins
