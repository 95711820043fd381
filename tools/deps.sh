#!/usr/bin/env bash
# Installs what is missing to build, check, test and measure Tailwater: nothing else, and nothing
# that is there already. Silent when nothing is missing. Runs without questions.
#
# usage: tools/deps.sh [GROUP...]
#
#   build   a C linker, CA certificates, Rust: needed for anything
#   check   python3: which crate and file imports which; runs test programs, and ends those that hang
#   wheel   python3 with its module venv: the Python package
#   test    tshark: an independent reader for the captures we write; zstd: packed rule sets; crun: functions in containers;
#           redis-server, openssl: flow state in Redis; nfdump: an independent collector of flow records;
#           libpcap: expressions of bpfFilter; Open vSwitch: the ingress of a rack; promtool: alert rules
#   bench   valgrind: instruction counts; zstd: packed rule sets; redis-server: what state in Redis costs; libpcap
#   ports   DPDK and pkg-config: the feature `dpdk`; ip, ping, curl, iperf3, openssl, tcpreplay, nft,
#           Open vSwitch: its tests end to end
#   milp    cmake and libclang: the feature `milp`, which builds HiGHS
#   cluster etcd-server, openssl: the real API server of `make test-cluster`
#   node    containerd, runc, plugins for pods' networks, ip, ethtool, iptables, conntrack: the nodes of `make cluster`
#
# Packages of `test`, `bench`, `ports`, `milp`, `cluster` and `node` are optional: tests and benchmarks that need a missing
# one are skipped, and report it; `make test-cluster` and `make cluster` fail.
#
# Without a group: all of them but `wheel`, `cluster` and `node`. Debian packages come by apt-get. Rust comes by rustup's own script,
# and only where there is no cargo; so where there is one, nothing but packages is fetched.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "deps: $*" >&2; }
fail() {
    say "$*"
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# Runs a command as root, without asking for a password where nobody can type one.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif have sudo && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
        sudo "$@"
    else
        return 77
    fi
}

apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)

# Fetches lists once, and only if there is something to install.
lists_are_fresh=
refresh_lists() {
    [ -z "$lists_are_fresh" ] || return 0
    lists_are_fresh=yes
    # A stale third-party list must not stop us: the install says what is really missing.
    as_root "${apt[@]}" update >&2
}

apt_install() {
    have apt-get || {
        say "apt-get not found: install the equivalents of these packages: $*"
        return 1
    }
    say "installing $*"
    local status=0
    refresh_lists || status=$?
    if [ "$status" -ne 77 ]; then
        status=0
        as_root "${apt[@]}" install -y --no-install-recommends "$@" >&2 </dev/null || status=$?
    fi
    if [ "$status" -eq 77 ]; then
        say "installing requires root, and sudo is not available: run  apt-get install $*  as root"
    fi
    return "$status"
}

build_packages() {
    local missing=()
    have cc && have c++ || missing+=(build-essential)
    # Where certificates lie differs; on Debian they are this file.
    if have apt-get && [ ! -e /etc/ssl/certs/ca-certificates.crt ]; then
        missing+=(ca-certificates)
    fi
    if ! have cargo && ! have curl; then
        missing+=(curl)
    fi
    [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}" ||
        fail "required: ${missing[*]}"
}

rust() {
    # Rustup's directory: its programs are found without a new login.
    PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
    if ! have cargo; then
        say "installing Rust with rustup's script"
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
            sh -s -- -y --quiet --no-modify-path --profile minimal --component rustfmt,clippy >&2
        have cargo || fail "Rust was installed, but cargo is not in $PATH"
        say "Rust is in $(dirname "$(command -v cargo)"), which \`make\` searches; add it to your PATH to use it in a shell"
    fi
    local need version
    need=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml)
    version=$(cargo --version | cut -d ' ' -f 2)
    if [ "$(printf '%s\n%s\n' "$need" "$version" | sort -V | head -n 1)" != "$need" ]; then
        fail "cargo is version $version, but Tailwater requires $need or later: update Rust" \
            "($(have rustup && echo "rustup update stable" || echo "from its source"))"
    fi
}

# Packages that have the name of the program they are needed for.
optional() {
    local missing=() tool
    for tool in "$@"; do
        have "$tool" || missing+=("$tool")
    done
    [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}" ||
        say "going on without ${missing[*]}: everything that requires it is skipped"
}

# The library that compiles expressions of packets; it is loaded when there is one, and nothing is linked with it.
pcap() {
    case "$(/sbin/ldconfig -p 2>/dev/null)" in
    *libpcap.so.0.8*) return ;;
    esac
    apt_install libpcap0.8 ||
        say "going on without libpcap: expressions of bpfFilter are refused, and their tests skipped"
}

# The switch that the ingress of a rack is tested with.
switch() {
    have ovs-vswitchd || [ -x /usr/sbin/ovs-vswitchd ] || apt_install openvswitch-switch ||
        say "going on without openvswitch-switch: everything that requires it is skipped"
}

# Prometheus' tool for rules. Its package also has the server, which would be started: only the tool is unpacked, beside
# build products.
rules_tool() {
    local kept="${CARGO_TARGET_DIR:-target}/tools/promtool" folder
    ! have promtool && [ ! -x "$kept" ] || return 0
    folder=$(mktemp -d)
    have apt-get && refresh_lists || true
    # As another user than apt's own, which may not write there.
    if have apt-get && (cd "$folder" && "${apt[@]}" -o APT::Sandbox::User=root download prometheus) >&2 &&
        dpkg-deb --extract "$folder"/prometheus_*.deb "$folder"; then
        mkdir -p "$(dirname "$kept")"
        cp "$folder/usr/bin/promtool" "$kept"
    else
        say "going on without promtool: tests of alert rules are skipped"
    fi
    rm -rf "$folder"
}

# DPDK's headers, and programs whose packages have other names.
ports() {
    local missing=()
    have pkg-config || missing+=(pkg-config)
    pkg-config --exists libdpdk 2>/dev/null || missing+=(libdpdk-dev)
    have ip || missing+=(iproute2)
    have ping || missing+=(iputils-ping)
    [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}" ||
        say "going on without ${missing[*]}: everything that requires it is skipped"
    # Functions of others, with which chains are tested.
    missing=()
    have nft || missing+=(nftables)
    have ovs-vswitchd || missing+=(openvswitch-switch)
    [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}" ||
        say "going on without ${missing[*]}: everything that requires it is skipped"
    optional curl iperf3 openssl tcpreplay ethtool
}

# tools/features.sh finds what is installed of it.
milp() {
    tools/features.sh milp && return
    local missing=(libclang-dev)
    have cmake || missing+=(cmake)
    have c++ || missing+=(g++)
    [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}" ||
        say "going on without ${missing[*]}: everything that requires it is skipped"
}

# etcd's package has another name than its program.
cluster() {
    local missing=()
    have etcd || missing+=(etcd-server)
    have openssl || missing+=(openssl)
    [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}" ||
        say "going on without ${missing[*]}: only a model of the API server can be used"
}

# Containers of `make cluster` run on these. Services are not started: the cluster runs programs of its own.
node() {
    local missing=()
    have containerd || missing+=(containerd)
    have runc || missing+=(runc)
    have ip || missing+=(iproute2)
    [ -x /usr/lib/cni/bridge ] || missing+=(containernetworking-plugins)
    [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}" ||
        say "going on without ${missing[*]}: there can be no nodes"
    optional ethtool iptables conntrack
}

[ $# -gt 0 ] || set -- build check test bench ports milp
for group in "$@"; do
    case $group in
    build)
        build_packages
        rust
        ;;
    check) have python3 || apt_install python3 || fail "required: python3" ;;
    wheel)
        # Debian has the modules that environments are made with in a package of their own.
        python3 -c 'import ensurepip, venv' 2>/dev/null || apt_install python3 python3-venv ||
            fail "required: python3 with its module venv"
        ;;
    test)
        optional tshark zstd crun redis-server openssl nfdump
        pcap
        switch
        rules_tool
        ;;
    bench)
        optional valgrind zstd redis-server
        pcap
        ;;
    ports) ports ;;
    milp) milp ;;
    cluster) cluster ;;
    node) node ;;
    *) fail "expected a group (build, check, wheel, test, bench, ports, milp, cluster, node), found $group" ;;
    esac
done
