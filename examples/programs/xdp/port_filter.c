// Drops UDP to the ports in an array, and counts drops per port.
// Built by: clang -O2 -g -target bpf -c port_filter.c -o port_filter.o && llvm-strip -g port_filter.o
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 4);
    __type(key, __u32);
    __type(value, __u64);
} dropped SEC(".maps");

static const volatile __u16 ports[4] = {1900, 19, 11211, 389};

SEC("xdp")
int port_filter(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct iphdr *ip = (void *)(eth + 1);
    struct udphdr *udp = (void *)(ip + 1);

    if ((void *)(udp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    if (ip->protocol != IPPROTO_UDP || ip->ihl != 5)
        return XDP_PASS;
    for (__u32 i = 0; i < 4; i++) {
        if (udp->dest == bpf_htons(ports[i])) {
            __u64 *count = bpf_map_lookup_elem(&dropped, &i);
            if (count)
                *count += 1;
            return XDP_DROP;
        }
    }
    return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
