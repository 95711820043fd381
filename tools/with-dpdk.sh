#!/usr/bin/env bash
# Runs a command if DPDK is installed; otherwise prints that it is skipped.
#
# usage: tools/with-dpdk.sh COMMAND...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if pkg-config --exists libdpdk 2>/dev/null; then
    exec "$@"
fi
echo "skipped, for want of DPDK (\`make deps\` installs it): $*"
