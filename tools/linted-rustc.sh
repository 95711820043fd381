#!/usr/bin/env bash
# The compiler of a crate of the workspace: compiles it, then lints it (clippy) and, if it is a library or a program,
# makes its documentation. Cargo finds the warnings among the compiler's own. Benchmarks and fuzz targets are linted only:
# nobody runs them, so an empty file takes their place.
#
# `cargo clippy` and `cargo doc` do the same, but read metadata of the libraries that no other build uses: 400 crates
# are parsed and checked for them alone.
#
# usage: RUSTC_WORKSPACE_WRAPPER=$PWD/tools/linted-rustc.sh cargo ARGUMENTS...
set -euo pipefail

rustc=$1
shift
# Cargo asks the compiler about itself, too.
if [[ " $* " != *" --crate-name "*" --emit="* ]]; then
    exec "$rustc" "$@"
fi

all=("$@") linted=() documented=() source='' tests='' crate='' suffix='' folder=''
while [ $# -gt 0 ]; do
    case $1 in
    # Other units would read what is left there.
    --emit=*) ;;
    --out-dir)
        folder=$2
        shift
        ;;
    # Cargo begins with what depends on a crate when it hears of its metadata.
    --json=*) linted+=("${1/,artifacts/}") documented+=("${1/,artifacts/}") ;;
    -C)
        [[ $2 == incremental=* ]] || linted+=("$1" "$2")
        [[ $2 != extra-filename=* ]] || suffix=${2#*=}
        shift
        ;;
    # Documentation is not linked.
    -l)
        linted+=("$1" "$2")
        shift
        ;;
    --test)
        linted+=("$1") tests=yes
        ;;
    --crate-name)
        crate=$2
        linted+=("$1" "$2") documented+=("$1" "$2")
        shift
        ;;
    *)
        [[ $1 != *.rs ]] || source=$1
        linted+=("$1") documented+=("$1")
        ;;
    esac
    shift
done

case $source in
crates/*/benches/* | fuzz/fuzz_targets/*)
    clippy-driver "$rustc" "${linted[@]}" --emit=dep-info,metadata --out-dir "$folder"
    : >"$folder/$crate$suffix"
    chmod +x "$folder/$crate$suffix"
    exit
    ;;
esac
"$rustc" "${all[@]}"

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# The unit tests of a library or program have its code, too, and are compiled apart.
if [[ -n $tests || $source != *src/@(lib|main).rs ]] || grep -q '^test = false' "$CARGO_MANIFEST_DIR/Cargo.toml"; then
    clippy-driver "$rustc" "${linted[@]}" --emit=metadata --out-dir "$out"
fi
case $tests$source in
yes*) ;;
*src/main.rs) rustdoc "${documented[@]}" --document-private-items --out-dir "$out" ;;
*src/lib.rs) rustdoc "${documented[@]}" --out-dir "$out" ;;
esac
