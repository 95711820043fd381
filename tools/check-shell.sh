#!/usr/bin/env bash
# Checks the shell scripts' syntax, and runs shellcheck where it is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts=(tools/*.sh .ci/run)
for script in "${scripts[@]}"; do
    bash -n "$script"
done
if command -v shellcheck >/dev/null 2>&1; then
    shellcheck "${scripts[@]}"
else
    echo "shellcheck is not installed: only the scripts' syntax was checked"
fi
