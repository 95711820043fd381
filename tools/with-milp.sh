#!/usr/bin/env bash
# Runs a command if HiGHS can be built; otherwise prints what is missing, and that it is skipped.
# Without a command, prints nothing and exits with 0 if HiGHS can be built, else 1.
#
# usage: tools/with-milp.sh [COMMAND...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# libclang has no program to detect it by. Its C++ library, libclang-cpp, is a different library.
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
if [ ${#missing[@]} -eq 0 ]; then
    [ $# -eq 0 ] || exec "$@"
    exit 0
fi
[ $# -gt 0 ] || exit 1
names=$(printf ' and %s' "${missing[@]}")
echo "skipped, for want of ${names# and } (\`make deps\` installs it): $*"
