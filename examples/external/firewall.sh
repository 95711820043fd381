#!/usr/bin/env bash
# The function of external.yaml: a network namespace in which the kernel forwards packets, drops what goes to mail
# servers, and translates addresses (nftables). Needs root.
#
# usage: examples/external/firewall.sh up|down
set -euo pipefail

name=tailwater-firewall

down() {
    ip netns del "$name" 2>/dev/null || true
    ip link del fw-in 2>/dev/null || true
    ip link del fw-out 2>/dev/null || true
}

up() {
    down
    ip netns add "$name"
    local end
    for end in in out; do
        ip link add "fw-$end" type veth peer name "$end" netns "$name"
        # Nobody but Tailwater says anything here, and checksums are not left to a NIC.
        sysctl -q -w "net.ipv6.conf.fw-$end.disable_ipv6=1"
        ethtool -K "fw-$end" tx off >/dev/null
        ip netns exec "$name" ethtool -K "$end" tx off >/dev/null
        ip link set "fw-$end" up
    done
    ip netns exec "$name" sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv4.ip_forward=1 \
        net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.in.rp_filter=0 net.ipv4.conf.out.rp_filter=0
    # The chain sends packets to this address; the next router's is known, since nobody is there to be asked.
    ip -n "$name" link set in address 02:00:00:00:00:01
    ip -n "$name" addr add 172.31.0.1/30 dev in
    ip -n "$name" addr add 172.31.0.5/30 dev out
    ip -n "$name" link set in up
    ip -n "$name" link set out up
    ip -n "$name" neigh replace 172.31.0.6 lladdr 02:00:00:00:00:02 dev out nud permanent
    ip -n "$name" route add default via 172.31.0.6
    ip netns exec "$name" nft -f - <<'RULES'
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

case ${1-} in
up) up ;;
down) down ;;
*)
    echo "usage: $0 up|down" >&2
    exit 2
    ;;
esac
