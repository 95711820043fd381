// Lets each source address have 1,000 packets.
// Built by: clang -O2 -g -target bpf -c source_counter.c -o source_counter.o && llvm-strip -g source_counter.o
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 65536);
    __type(key, __u32);
    __type(value, __u64);
} sources SEC(".maps");

SEC("xdp")
int source_counter(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct iphdr *ip = (void *)(eth + 1);

    if ((void *)(ip + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    __u32 source = ip->saddr;
    __u64 *count = bpf_map_lookup_elem(&sources, &source);
    if (count) {
        __sync_fetch_and_add(count, 1);
        return *count > 1000 ? XDP_DROP : XDP_PASS;
    }
    __u64 one = 1;
    bpf_map_update_elem(&sources, &source, &one, BPF_ANY);
    return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
