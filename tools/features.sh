#!/usr/bin/env bash
# Prints cargo's arguments for the whole workspace with every optional part that this machine can build:
# `dpdk` where DPDK is installed, `milp` where HiGHS can be built. Reports on standard error what is left out, and why.
# All checks and tests use these arguments, so that there is one build configuration and everything is compiled once.
#
# usage: tools/features.sh
#        tools/features.sh without    arguments for the program without optional parts; its libraries are those of above
#        tools/features.sh milp       exits with 0 if HiGHS can be built; prints nothing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# libclang has no program of its own to look for. Its C++ library, libclang-cpp, is another one.
libclang() {
    local folder name
    [ -f "${LIBCLANG_PATH:-}" ] && return
    for folder in "${LIBCLANG_PATH:-/usr/lib}" /usr/lib/llvm-*/lib /usr/lib/*-linux-gnu /usr/lib64 /usr/lib /usr/local/lib; do
        for name in libclang.so "libclang.so.*" "libclang-[0-9]*.so" "libclang-[0-9]*.so.*"; do
            compgen -G "$folder/$name" >/dev/null && return
        done
    done
    return 1
}

missing=()
command -v cmake >/dev/null 2>&1 || missing+=(cmake)
command -v c++ >/dev/null 2>&1 || missing+=("a C++ compiler")
libclang || missing+=(libclang)
if [ "${1:-}" = milp ]; then
    [ ${#missing[@]} -eq 0 ]
    exit
fi

if [ "${1:-}" = without ]; then
    arguments="--locked -p tailwater -p tailwater-libraries --no-default-features"
    [ ${#missing[@]} -gt 0 ] || arguments+=" --features tailwater-libraries/milp"
    echo "$arguments"
    exit
fi

features=(tailwater-placement/spec tailwater/cluster)
if [ ${#missing[@]} -eq 0 ]; then
    features+=(tailwater/milp)
else
    names=$(printf ' and %s' "${missing[@]}")
    echo "skipped: the feature milp, which requires ${names# and } (\`make deps\` installs it)" >&2
fi
if pkg-config --exists libdpdk 2>/dev/null; then
    features+=(tailwater/dpdk)
else
    echo "skipped: the feature dpdk, which requires DPDK (\`make deps\` installs it)" >&2
fi
echo "--locked --workspace --features $(
    IFS=,
    echo "${features[*]}"
)"
