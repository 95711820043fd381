#!/usr/bin/env bash
# Measures Tailwater beside other programs (crates/dataplane/benches/peers): installs `testpmd` and builds `l3fwd` from
# Debian's packages, builds the traffic's device and Tailwater with ports, and runs the benchmark.
#
# usage: [FASTCLICK=/path/to/bin/click] [TESTPMD=...] [L3FWD=...] tools/peers.sh [--quick] [ARGUMENTS OF THE BENCHMARK]
#
# A program that is missing is reported by the benchmark, which leaves out its rows. FastClick must be built with DPDK's
# shared libraries of the same version (`pkg-config --modversion libdpdk`).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=$PWD/target/peers
examples=/usr/share/dpdk/examples
say() { echo "peers: $*" >&2; }

pkg-config --exists libdpdk 2>/dev/null || {
    say "no figures: DPDK is not installed (\`make deps\`)"
    exit 0
}

install_packages() {
    local missing=()
    command -v dpdk-testpmd >/dev/null || missing+=(dpdk-dev)
    [ -d "$examples/l3fwd" ] || missing+=(dpdk-doc)
    [ ${#missing[@]} -gt 0 ] || return 0
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || {
        say "not installed: ${missing[*]} (needs apt-get and root)"
        return 0
    }
    apt-get -qq install -y --no-install-recommends "${missing[@]}" >&2 </dev/null || say "not installed: ${missing[*]}"
}

# Room for a full table, no checksum offload (virtual devices have none), and this processor's instructions.
build_l3fwd() {
    rm -rf "$folder/l3fwd"
    cp -r "$examples/l3fwd" "$examples/common" "$folder/" || return
    (
        cd "$folder/l3fwd" || exit
        sed -i 's/\.offloads = RTE_ETH_RX_OFFLOAD_CHECKSUM,/.offloads = 0,/' main.c
        sed -i -E -e 's/^(#define IPV[46]_L3FWD_LPM_MAX_RULES) .*/\1 (1 << 20)/' \
            -e 's/^(#define IPV4_L3FWD_LPM_NUMBER_TBL8S) .*/\1 (1 << 16)/' l3fwd_lpm.c
        make shared CFLAGS="-O3 $(pkg-config --cflags libdpdk) -march=native -DALLOW_EXPERIMENTAL_API -I../common"
    ) >"$folder/l3fwd.log" 2>&1
}

build_device() {
    # shellcheck disable=SC2046 # several options
    cc -O3 -fPIC -shared -Wall -Wextra $(pkg-config --cflags libdpdk) crates/dataplane/benches/peers/device.c \
        -o "$folder/device.so" $(pkg-config --libs-only-L libdpdk) -lrte_ethdev -lrte_mbuf -ldl
}

mkdir -p "$folder"
install_packages
if [ -z "${TESTPMD:-}" ]; then
    TESTPMD=$(command -v dpdk-testpmd) || say "no dpdk-testpmd (Debian: dpdk-dev)"
fi
if [ -z "${L3FWD:-}" ]; then
    build_l3fwd || say "l3fwd was not built: $(tail -n 1 "$folder/l3fwd.log" 2>/dev/null)"
    L3FWD=$folder/l3fwd/build/l3fwd
fi
build_device
cargo build --release --locked -p tailwater --features dpdk
TAILWATER=$PWD/target/release/tailwater PEERS_DEVICE=$folder/device.so
export TESTPMD L3FWD TAILWATER PEERS_DEVICE

arguments=(--runs 9)
for argument in "$@"; do
    case $argument in
    --quick) arguments+=(--runs 3) ;;
    *) arguments+=("$argument") ;;
    esac
done
cargo bench --locked -p tailwater-dataplane --bench peers -- "${arguments[@]}"
