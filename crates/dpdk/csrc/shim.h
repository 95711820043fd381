/*
 * C interface to DPDK for the Rust side: plain structs and functions, no macros and no inline code.
 * crates/dpdk/src/ffi.rs has the same declarations; both check the sizes.
 */
#ifndef TAILWATER_SHIM_H
#define TAILWATER_SHIM_H

#include <stddef.h>
#include <stdint.h>

/* Buffer pool: one contiguous memory region, with mbufs one stride apart. */
struct tw_pool {
    void *mempool;
    const void *zone;
    /* First byte of the first buffer, headroom included. */
    uint8_t *base;
    uint64_t stride;
    /* Size of a buffer in bytes, headroom included. */
    uint64_t bytes;
    /* 2^64 divided by the stride, rounded up: a multiplication converts an offset to an index. */
    uint64_t reciprocal;
    uint32_t count;
};

struct tw_port_info {
    char driver[32];
    uint64_t rss_types;
    uint16_t max_rx_queues;
    uint16_t max_tx_queues;
    uint16_t reta_size;
    uint16_t hash_key_bytes;
    uint16_t mtu;
    int16_t socket;
    /* 1 if the port reports the RSS hash of packets. */
    uint8_t gives_hash;
    uint8_t mac[6];
};

struct tw_port_config {
    uint16_t rx_queues;
    uint16_t tx_queues;
    /* Requested descriptors; replaced by the number that the port supports. */
    uint16_t rx_ring;
    uint16_t tx_ring;
    uint16_t hash_key_bytes;
    /* 1 to request checksum verification; replaced by 1 if the port verifies checksums, else 0. */
    uint16_t checksums;
    /* 1 to request receive timestamps of the device; replaced by 1 if packets have them, else 0. If they do,
     * `timestamp_offset` is the time's offset in an mbuf, and `timestamp_flag` the flag that marks it valid. */
    uint16_t timestamps;
    uint16_t timestamp_offset;
    const uint8_t *hash_key;
    uint64_t timestamp_flag;
};

struct tw_link {
    uint32_t mbps;
    uint8_t up;
};

struct tw_stats {
    uint64_t received;
    uint64_t sent;
    /* Packets lost by the device for lack of descriptors, by errors, and for lack of buffers. */
    uint64_t missed;
    uint64_t receive_errors;
    uint64_t no_buffer;
    uint64_t send_errors;
};

/* Received packets that are not passed to a chain. */
struct tw_refused {
    /* Multi-segment packets that do not fit into one buffer. */
    uint64_t in_pieces;
    /* Packets with a checksum that the device found wrong; counted only if `damage_counts` is set. */
    uint64_t damaged;
    /* 1 to refuse packets with wrong checksums. */
    uint64_t damage_counts;
};

/* Packet to be copied. */
struct tw_copy {
    const uint8_t *frame;
    uint32_t length;
    uint32_t hash;
};

/* Frame in an array of cache lines, and the receive metadata a device would report, in the layout of an mbuf. */
struct tw_frame {
    uint32_t line;
    uint32_t lines;
    uint64_t unused;
    uint32_t packet_type;
    uint32_t packet_length;
    uint16_t length;
    uint16_t vlan;
    uint32_t hash;
};

/* Queue of a port. */
struct tw_queue {
    uint16_t port;
    uint16_t queue;
};

int tw_eal_start(int argc, char **argv);
size_t tw_log(char *into, size_t size);
const char *tw_version(void);
int tw_thread_enter(void);
void tw_thread_leave(void);

int tw_interrupts_gate(void (*turn)(void *));
void tw_await_control(void);

int tw_pool_create(const char *name, uint32_t count, uint32_t bytes, uint32_t cache, int socket,
                   struct tw_pool *pool);
void tw_pool_free(struct tw_pool *pool);
uint32_t tw_pool_available(const struct tw_pool *pool);

int tw_probe(const char *device, uint16_t *port);
int tw_port_info(uint16_t port, struct tw_port_info *info);
/* An `mtu` of 0 keeps the device's MTU. */
int tw_port_configure(uint16_t port, struct tw_port_config *config, uint16_t mtu, const struct tw_pool *pool);
int tw_port_start(uint16_t port);
void tw_port_close(uint16_t port);
int tw_port_watch(uint16_t port, uint8_t *removed);
void tw_port_unwatch(uint16_t port, uint8_t *removed);
int tw_port_promiscuous(uint16_t port, int on);
int tw_port_link(uint16_t port, struct tw_link *link);
int tw_port_stats(uint16_t port, struct tw_stats *stats);
int tw_port_xstat(uint16_t port, const char *name, uint64_t *value);
int tw_port_read_clock(uint16_t port, uint64_t *ticks);
int tw_port_set_reta(uint16_t port, const uint16_t *queues, uint16_t size);
int tw_port_reta(uint16_t port, uint16_t *queues, uint16_t size);

uint16_t tw_receive(uint16_t port, uint16_t queue, void **mbufs, uint16_t most);
int tw_make_usable(const struct tw_pool *pool, void *mbuf, struct tw_refused *refused);
uint16_t tw_send(uint16_t port, uint16_t queue, void **mbufs, uint16_t count);
uint16_t tw_inject(const struct tw_pool *pool, uint16_t port, uint16_t queue,
                   const struct tw_copy *copies, uint16_t count);
uint16_t tw_refill(const struct tw_pool *pool, struct tw_queue from, struct tw_queue to,
                   const uint8_t *lines, const struct tw_frame *frames, uint16_t count);
uint16_t tw_forward(struct tw_queue from, struct tw_queue to, uint16_t most);
int tw_inject_in_pieces(const struct tw_pool *pool, uint16_t port, uint16_t queue, const uint8_t *frame,
                        uint16_t length, uint16_t first);
void tw_give_up(void **mbufs, uint16_t count);
void tw_give_back(const struct tw_pool *pool, const uint32_t *indexes, uint32_t count);
int tw_take(const struct tw_pool *pool, uint32_t *indexes, uint32_t count);

#endif
