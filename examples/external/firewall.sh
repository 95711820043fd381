#!/usr/bin/env bash
# The function of external.yaml: a network namespace in which the kernel forwards packets, drops what goes to mail
# servers, and translates addresses (nftables). Needs root.
#
# usage: examples/external/firewall.sh up [CORES]|down
#
# Without CORES, the ends of the veth pairs are fw-in and fw-out. With it, each core has its own namespace, and ends
# fw-in0 and fw-out0, fw-in1 and fw-out1, ...
set -euo pipefail

name=tailwater-firewall

down() {
    local namespace core
    for namespace in $(ip netns list | cut -d ' ' -f 1); do
        core=${namespace#"$name"}
        case $namespace in
        "$name" | "$name"[0-9]*)
            # The namespace goes in the background, and with it the pairs.
            ip link del "fw-in$core" 2>/dev/null || true
            ip link del "fw-out$core" 2>/dev/null || true
            ip netns del "$namespace"
            ;;
        esac
    done
}

# One namespace; its names end with the core's number, if there is one.
add() {
    local namespace=$name$1 end
    ip netns add "$namespace"
    for end in in out; do
        ip link add "fw-$end$1" type veth peer name "$end" netns "$namespace"
        # Nobody but Tailwater says anything here, and checksums and segmentation are not left to a NIC.
        sysctl -q -w "net.ipv6.conf.fw-$end$1.disable_ipv6=1"
        ethtool -K "fw-$end$1" tx off >/dev/null
        ip netns exec "$namespace" ethtool -K "$end" tx off >/dev/null
        ip link set "fw-$end$1" up
    done
    ip netns exec "$namespace" sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv4.ip_forward=1 \
        net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.in.rp_filter=0 net.ipv4.conf.out.rp_filter=0
    # The chain sends packets to this address; the next router's is known, since nobody is there to be asked.
    ip -n "$namespace" link set in address 02:00:00:00:00:01
    ip -n "$namespace" addr add 172.31.0.1/30 dev in
    ip -n "$namespace" addr add 172.31.0.5/30 dev out
    ip -n "$namespace" link set in up
    ip -n "$namespace" link set out up
    ip -n "$namespace" neigh replace 172.31.0.6 lladdr 02:00:00:00:00:02 dev out nud permanent
    ip -n "$namespace" route add default via 172.31.0.6
    ip netns exec "$namespace" nft -f - <<'RULES'
table ip firewall {
    chain forward {
        type filter hook forward priority 0; policy accept
        tcp dport { 25, 465, 587 } drop
    }
    chain translate {
        type nat hook postrouting priority 100
        oifname "out" masquerade
    }
}
RULES
}

up() {
    local core
    down
    if [ $# -eq 0 ]; then
        add ""
        return
    fi
    for ((core = 0; core < $1; core++)); do
        add "$core"
    done
}

case ${1-} in
up) shift && up "$@" ;;
down) down ;;
*)
    echo "usage: $0 up [CORES]|down" >&2
    exit 2
    ;;
esac
