/* Plain functions around DPDK, whose data path is inline code in headers that only C can call. */

#define _GNU_SOURCE
/* The interrupt handle API has been stable since 22.11, which still marks it experimental. */
#define ALLOW_EXPERIMENTAL_API
#include "shim.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <rte_cycles.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_interrupts.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mbuf_dyn.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_memcpy.h>
#include <rte_memzone.h>
#include <rte_version.h>

/* Maximum number of packets per call. */
#define MOST 256u

/* Size in bytes of the lines that frames are aligned to. */
#define LINE 64u

/* Sizes in crates/dpdk/src/ffi.rs. */
_Static_assert(sizeof(struct tw_pool) == 56, "pool");
_Static_assert(sizeof(struct tw_port_info) == 64, "info");
_Static_assert(sizeof(struct tw_port_config) == 32, "config");
_Static_assert(sizeof(struct tw_link) == 8, "link");
_Static_assert(sizeof(struct tw_stats) == 48, "stats");
_Static_assert(sizeof(struct tw_refused) == 24, "refused");
_Static_assert(sizeof(struct tw_copy) == 16, "copy");
_Static_assert(sizeof(struct tw_frame) == 32, "frame");
_Static_assert(sizeof(struct tw_queue) == 4, "queue");

/* Layout in crates/dpdk/src/mbuf.rs. */
#define LIES_AT(field, offset, bytes)                                                                 \
    _Static_assert(offsetof(struct rte_mbuf, field) == (offset) &&                                    \
                       sizeof(((struct rte_mbuf *)0)->field) == (bytes),                              \
                   #field)
LIES_AT(data_off, 16, 2);
LIES_AT(refcnt, 18, 2);
LIES_AT(nb_segs, 20, 2);
LIES_AT(port, 22, 2);
LIES_AT(ol_flags, 24, 8);
LIES_AT(packet_type, 32, 4);
LIES_AT(pkt_len, 36, 4);
LIES_AT(data_len, 40, 2);
LIES_AT(vlan_tci, 42, 2);
LIES_AT(hash.rss, 44, 4);
_Static_assert(sizeof(struct rte_mbuf) == 128, "mbuf");
_Static_assert(RTE_MBUF_F_RX_RSS_HASH == 1 << 1, "hash");
_Static_assert(RTE_MBUF_F_RX_L4_CKSUM_BAD == 1 << 3, "bad checksum");
_Static_assert(RTE_MBUF_F_RX_IP_CKSUM_BAD == 1 << 4, "bad checksum");

/* Most recent log output of DPDK and its drivers, which report causes of errors nowhere else. */
static char said[4096];
static size_t said_bytes;
static pthread_mutex_t said_lock = PTHREAD_MUTEX_INITIALIZER;

static ssize_t hear(void *cookie, const char *text, size_t bytes)
{
    (void)cookie;
    size_t keep = RTE_MIN(bytes, sizeof(said) / 2);
    pthread_mutex_lock(&said_lock);
    if (said_bytes + keep > sizeof(said)) {
        size_t rest = RTE_MIN(said_bytes, sizeof(said) - keep);
        memmove(said, said + said_bytes - rest, rest);
        said_bytes = rest;
    }
    memcpy(said + said_bytes, text + bytes - keep, keep);
    said_bytes += keep;
    pthread_mutex_unlock(&said_lock);
    return bytes;
}

/* Moves the log output since the last call to `into`, cut to `size` bytes. Returns its length. */
size_t tw_log(char *into, size_t size)
{
    pthread_mutex_lock(&said_lock);
    size_t bytes = RTE_MIN(size, said_bytes);
    memcpy(into, said + said_bytes - bytes, bytes);
    said_bytes = 0;
    pthread_mutex_unlock(&said_lock);
    return bytes;
}

const char *tw_version(void)
{
    return rte_version();
}

int tw_eal_start(int argc, char **argv)
{
    cookie_io_functions_t functions = {.write = hear};
    FILE *log = fopencookie(NULL, "w", functions);
    if (log != NULL) {
        setvbuf(log, NULL, _IONBF, 0);
        rte_openlog_stream(log);
    }
    /* EAL pins the calling thread, which belongs to the caller here, so its affinity is restored. */
    cpu_set_t cores;
    int known = pthread_getaffinity_np(pthread_self(), sizeof(cores), &cores);
    int result = rte_eal_init(argc, argv);
    int error = rte_errno;
    if (known == 0)
        pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores);
    return result < 0 ? -(error != 0 ? error : EINVAL) : 0;
}

int tw_thread_enter(void)
{
    return rte_thread_register() < 0 ? -rte_errno : 0;
}

void tw_thread_leave(void)
{
    rte_thread_unregister();
}

/* Makes DPDK's interrupt thread call `turn` in each iteration, in which it also calls drivers. */
int tw_interrupts_gate(void (*turn)(void *))
{
    struct rte_intr_handle *handle = rte_intr_instance_alloc(RTE_INTR_INSTANCE_F_PRIVATE);
    /* Always readable, because nobody reads it. */
    int always = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC), error = -ENOMEM;
    if (handle == NULL || always < 0)
        goto failed;
    error = rte_intr_fd_set(handle, always);
    if (error == 0)
        error = rte_intr_type_set(handle, RTE_INTR_HANDLE_EXT);
    if (error == 0)
        error = rte_intr_callback_register(handle, turn, NULL);
    if (error == 0)
        return 0;
failed:
    if (always >= 0)
        close(always);
    rte_intr_instance_free(handle);
    return error;
}

/* Minimum and maximum wait of drivers' interrupts, in milliseconds. */
#define LEAST_WAIT 1
#define MOST_WAIT 100
/* Number of file descriptors searched for control sockets. */
#define DESCRIPTORS 1024

/* Waits until a memif peer sends a message or disconnects, or until a timeout. */
void tw_await_control(void)
{
    struct pollfd control[64];
    nfds_t count = 0;
    for (int fd = 0; fd < DESCRIPTORS && count < RTE_DIM(control); fd++) {
        int domain, type;
        struct sockaddr_un own = {0}, peer = {0};
        socklen_t size = sizeof(int), also = sizeof(int), own_size = sizeof(own), peer_size = sizeof(peer);
        /* Socket pairs, used for isolated functions, have no path on either side. */
        if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX &&
            getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &also) == 0 && type == SOCK_SEQPACKET &&
            getsockname(fd, (struct sockaddr *)&own, &own_size) == 0 &&
            (own.sun_path[0] != 0 ||
             (getpeername(fd, (struct sockaddr *)&peer, &peer_size) == 0 && peer.sun_path[0] != 0)))
            control[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    (void)poll(NULL, 0, LEAST_WAIT);
    (void)poll(control, count, MOST_WAIT);
}

struct found {
    uint8_t *first;
    uint64_t stride;
    uint32_t seen;
    int linear;
};

static void look(struct rte_mempool *mempool, void *opaque, void *object, unsigned index)
{
    struct found *found = opaque;
    (void)mempool;
    if (index == 0)
        found->first = object;
    found->linear &= (uint8_t *)object == found->first + index * found->stride;
    found->seen++;
}

int tw_pool_create(const char *name, uint32_t count, uint32_t bytes, uint32_t cache, int socket,
                   struct tw_pool *pool)
{
    struct rte_pktmbuf_pool_private private = {.mbuf_data_room_size = bytes};
    unsigned element = sizeof(struct rte_mbuf) + bytes;
    struct rte_mempool *mempool;
    const struct rte_memzone *zone = NULL;
    char zone_name[RTE_MEMZONE_NAMESIZE];
    int error = 0;

    /* No gaps at page ends, so that an index gives a buffer's address. The memory is contiguous for devices, too,
     * because the zone's is. */
    mempool = rte_mempool_create_empty(name, count, element, cache, sizeof(private), socket,
                                       RTE_MEMPOOL_F_NO_IOVA_CONTIG | RTE_MEMPOOL_F_NO_SPREAD);
    if (mempool == NULL)
        return -rte_errno;
    error = rte_mempool_set_ops_byname(mempool, rte_mbuf_best_mempool_ops(), NULL);
    if (error != 0)
        goto failed;
    rte_pktmbuf_pool_init(mempool, &private);

    uint64_t stride = mempool->header_size + mempool->elt_size + mempool->trailer_size;
    snprintf(zone_name, sizeof(zone_name), "%s_zone", name);
    zone = rte_memzone_reserve_aligned(zone_name, stride * count + RTE_MEMPOOL_ALIGN, socket,
                                       RTE_MEMZONE_IOVA_CONTIG, RTE_CACHE_LINE_SIZE);
    if (zone == NULL) {
        error = -rte_errno;
        goto failed;
    }
    memset(zone->addr, 0, zone->len);
    int populated = rte_mempool_populate_iova(mempool, zone->addr, zone->iova, zone->len, NULL, NULL);
    struct found found = {.stride = stride, .linear = 1};
    if (populated > 0)
        rte_mempool_obj_iter(mempool, look, &found);
    if (populated != (int)count || found.seen != count || !found.linear) {
        error = populated < 0 ? populated : -EINVAL;
        goto failed;
    }
    rte_mempool_obj_iter(mempool, rte_pktmbuf_init, NULL);

    *pool = (struct tw_pool){
        .mempool = mempool,
        .zone = zone,
        .base = found.first + sizeof(struct rte_mbuf),
        .stride = stride,
        .bytes = bytes,
        .reciprocal = UINT64_MAX / stride + 1,
        .count = count,
    };
    return 0;

failed:
    rte_mempool_free(mempool);
    if (zone != NULL)
        rte_memzone_free(zone);
    return error;
}

void tw_pool_free(struct tw_pool *pool)
{
    rte_mempool_free(pool->mempool);
    rte_memzone_free(pool->zone);
}

uint32_t tw_pool_available(const struct tw_pool *pool)
{
    return rte_mempool_avail_count(pool->mempool);
}

int tw_probe(const char *device, uint16_t *port)
{
    struct rte_dev_iterator iterator;
    uint16_t id;
    int error = rte_dev_probe(device);
    if (error != 0)
        return error;
    RTE_ETH_FOREACH_MATCHING_DEV(id, device, &iterator) {
        *port = id;
        rte_eth_iterator_cleanup(&iterator);
        return 0;
    }
    return -ENODEV;
}

int tw_port_info(uint16_t port, struct tw_port_info *info)
{
    struct rte_eth_dev_info device;
    struct rte_ether_addr mac = {0};
    int error = rte_eth_dev_info_get(port, &device);
    if (error != 0)
        return error;
    memset(info, 0, sizeof(*info));
    snprintf(info->driver, sizeof(info->driver), "%s", device.driver_name);
    info->rss_types = device.flow_type_rss_offloads;
    info->max_rx_queues = device.max_rx_queues;
    info->max_tx_queues = device.max_tx_queues;
    info->reta_size = device.reta_size;
    info->hash_key_bytes = device.hash_key_size;
    info->socket = rte_eth_dev_socket_id(port);
    info->gives_hash = (device.rx_offload_capa & RTE_ETH_RX_OFFLOAD_RSS_HASH) != 0;
    if (rte_eth_dev_get_mtu(port, &info->mtu) != 0)
        info->mtu = RTE_ETHER_MTU;
    if (rte_eth_macaddr_get(port, &mac) == 0)
        memcpy(info->mac, mac.addr_bytes, sizeof(info->mac));
    return 0;
}

/* Registers the mbuf field for a device's timestamps. Returns 1 if the device declares the offload and has a readable
 * clock. A driver that only writes the field, such as net_pcap, uses it for another time. */
static int give_times(uint16_t port, const struct rte_eth_dev_info *device, struct tw_port_config *config)
{
    uint64_t ticks;
    int offset;
    if ((device->rx_offload_capa & RTE_ETH_RX_OFFLOAD_TIMESTAMP) == 0 ||
        rte_eth_read_clock(port, &ticks) == -ENOTSUP ||
        rte_mbuf_dyn_rx_timestamp_register(&offset, &config->timestamp_flag) != 0)
        return 0;
    config->timestamp_offset = offset;
    return 1;
}

int tw_port_configure(uint16_t port, struct tw_port_config *config, uint16_t mtu, const struct tw_pool *pool)
{
    struct rte_eth_dev_info device;
    int error = rte_eth_dev_info_get(port, &device);
    if (error != 0)
        return error;
    struct rte_eth_conf conf = {.rxmode.mtu = mtu};
    uint64_t types = device.flow_type_rss_offloads;
    if (config->rx_queues > 1 && types != 0) {
        conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
        /* Same as the software hash: addresses, and the ports of non-fragments. */
        conf.rx_adv_conf.rss_conf.rss_hf =
            types & (RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP);
        conf.rx_adv_conf.rss_conf.rss_key = (uint8_t *)(uintptr_t)config->hash_key;
        conf.rx_adv_conf.rss_conf.rss_key_len = config->hash_key_bytes;
        conf.rxmode.offloads |= device.rx_offload_capa & RTE_ETH_RX_OFFLOAD_RSS_HASH;
    }
    /* Packets with a wrong checksum are marked, and delivered nevertheless. */
    uint64_t checksums = config->checksums ? device.rx_offload_capa & RTE_ETH_RX_OFFLOAD_CHECKSUM : 0;
    conf.rxmode.offloads |= checksums;
    config->checksums = checksums != 0;
    config->timestamps = config->timestamps && give_times(port, &device, config);
    if (config->timestamps)
        conf.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_TIMESTAMP;
    /* All buffers are single-segment, from one pool, with a reference count of one. */
    conf.txmode.offloads = device.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;
    error = rte_eth_dev_configure(port, config->rx_queues, config->tx_queues, &conf);
    /* The MTU must be set after configuring, which resets it. */
    if (error == 0 && mtu != 0)
        error = rte_eth_dev_set_mtu(port, mtu);
    if (error != 0)
        return error;
    error = rte_eth_dev_adjust_nb_rx_tx_desc(port, &config->rx_ring, &config->tx_ring);
    if (error != 0)
        return error;
    int socket = rte_eth_dev_socket_id(port);
    for (uint16_t queue = 0; queue < config->rx_queues && error == 0; queue++) {
        struct rte_eth_rxconf rx = device.default_rxconf;
        rx.offloads = conf.rxmode.offloads;
        error = rte_eth_rx_queue_setup(port, queue, config->rx_ring, socket, &rx, pool->mempool);
    }
    for (uint16_t queue = 0; queue < config->tx_queues && error == 0; queue++) {
        struct rte_eth_txconf tx = device.default_txconf;
        tx.offloads = conf.txmode.offloads;
        error = rte_eth_tx_queue_setup(port, queue, config->tx_ring, socket, &tx);
    }
    return error;
}

int tw_port_start(uint16_t port)
{
    return rte_eth_dev_start(port);
}

void tw_port_close(uint16_t port)
{
    struct rte_eth_dev_info device;
    struct rte_device *parent = NULL;
    if (rte_eth_dev_info_get(port, &device) == 0)
        parent = (struct rte_device *)(uintptr_t)device.device;
    /* Some drivers cannot stop twice or at all; only closing matters. */
    (void)rte_eth_dev_stop(port);
    (void)rte_eth_dev_close(port);
    if (parent != NULL)
        (void)rte_dev_remove(parent);
}

static int gone(uint16_t port, enum rte_eth_event_type event, void *removed, void *unused)
{
    (void)port;
    (void)event;
    (void)unused;
    __atomic_store_n((uint8_t *)removed, 1, __ATOMIC_RELAXED);
    return 0;
}

int tw_port_watch(uint16_t port, uint8_t *removed)
{
    return rte_eth_dev_callback_register(port, RTE_ETH_EVENT_INTR_RMV, gone, removed);
}

void tw_port_unwatch(uint16_t port, uint8_t *removed)
{
    (void)rte_eth_dev_callback_unregister(port, RTE_ETH_EVENT_INTR_RMV, gone, removed);
}

int tw_port_promiscuous(uint16_t port, int on)
{
    return on ? rte_eth_promiscuous_enable(port) : rte_eth_promiscuous_disable(port);
}

int tw_port_link(uint16_t port, struct tw_link *link)
{
    struct rte_eth_link found;
    int error = rte_eth_link_get_nowait(port, &found);
    if (error == 0) {
        link->up = found.link_status == RTE_ETH_LINK_UP;
        link->mbps = found.link_speed == RTE_ETH_SPEED_NUM_UNKNOWN ? 0 : found.link_speed;
    }
    return error;
}

int tw_port_stats(uint16_t port, struct tw_stats *stats)
{
    struct rte_eth_stats found;
    int error = rte_eth_stats_get(port, &found);
    if (error == 0)
        *stats = (struct tw_stats){
            .received = found.ipackets,
            .sent = found.opackets,
            .missed = found.imissed,
            .receive_errors = found.ierrors,
            .no_buffer = found.rx_nombuf,
            .send_errors = found.oerrors,
        };
    return error;
}

/* Reads the device's clock, in its ticks. */
int tw_port_read_clock(uint16_t port, uint64_t *ticks)
{
    return rte_eth_read_clock(port, ticks);
}

/* Reads an extended statistic; -ENOENT if the port has none of that name. */
int tw_port_xstat(uint16_t port, const char *name, uint64_t *value)
{
    uint64_t id;
    if (rte_eth_xstats_get_id_by_name(port, name, &id) != 0)
        return -ENOENT;
    return rte_eth_xstats_get_by_id(port, &id, value, 1) == 1 ? 0 : -ENOENT;
}

/* Maximum number of RETA entries. */
#define MOST_ENTRIES 4096
#define GROUP RTE_ETH_RETA_GROUP_SIZE

int tw_port_set_reta(uint16_t port, const uint16_t *queues, uint16_t size)
{
    struct rte_eth_rss_reta_entry64 entries[MOST_ENTRIES / GROUP] = {0};
    if (size > MOST_ENTRIES)
        return -EINVAL;
    for (uint16_t i = 0; i < size; i++) {
        entries[i / GROUP].mask |= UINT64_C(1) << (i % GROUP);
        entries[i / GROUP].reta[i % GROUP] = queues[i];
    }
    return rte_eth_dev_rss_reta_update(port, entries, size);
}

int tw_port_reta(uint16_t port, uint16_t *queues, uint16_t size)
{
    struct rte_eth_rss_reta_entry64 entries[MOST_ENTRIES / GROUP] = {0};
    if (size > MOST_ENTRIES)
        return -EINVAL;
    for (uint16_t i = 0; i < size; i++)
        entries[i / GROUP].mask |= UINT64_C(1) << (i % GROUP);
    int error = rte_eth_dev_rss_reta_query(port, entries, size);
    for (uint16_t i = 0; i < size && error == 0; i++)
        queues[i] = entries[i / GROUP].reta[i % GROUP];
    return error;
}

static inline struct rte_mbuf *mbuf_of(const struct tw_pool *pool, uint32_t index)
{
    return (struct rte_mbuf *)(pool->base + index * pool->stride) - 1;
}

/* Returns the index of the buffer at an offset. Exact: with offsets below 2^47 and strides of up to 2^15 the
 * product is too large by less than 2^64 / stride. */
static inline uint32_t index_of(const struct tw_pool *pool, uint64_t offset)
{
    return (unsigned __int128)offset * pool->reciprocal >> 64;
}

/* Returns 1 if a chain can process the mbuf: single-segment, from this pool, reference count one. */
static inline int usable(const struct tw_pool *pool, const struct rte_mbuf *mbuf)
{
    uint64_t offset = (const uint8_t *)(mbuf + 1) - pool->base;
    return likely(mbuf->nb_segs == 1 && offset < pool->count * pool->stride &&
                  rte_mbuf_refcnt_read(mbuf) == 1);
}

/* Returns 1 if the checksum is bad. Both bits set together mean that it was not verified. */
static inline int is_bad(uint64_t flags, uint64_t mask, uint64_t bad)
{
    return (flags & mask) == bad;
}

/* Makes a packet usable for a chain and returns 1, or frees and counts it and returns 0. */
int tw_make_usable(const struct tw_pool *pool, void *of, struct tw_refused *refused)
{
    struct rte_mbuf *mbuf = of;
    uint64_t flags = mbuf->ol_flags;
    if (rte_pktmbuf_linearize(mbuf) != 0 || !usable(pool, mbuf)) {
        refused->in_pieces++;
    } else if (refused->damage_counts &&
               (is_bad(flags, RTE_MBUF_F_RX_IP_CKSUM_MASK, RTE_MBUF_F_RX_IP_CKSUM_BAD) ||
                is_bad(flags, RTE_MBUF_F_RX_L4_CKSUM_MASK, RTE_MBUF_F_RX_L4_CKSUM_BAD))) {
        refused->damaged++;
    } else {
        return 1;
    }
    rte_pktmbuf_free(mbuf);
    return 0;
}

uint16_t tw_receive(uint16_t port, uint16_t queue, void **mbufs, uint16_t most)
{
    return rte_eth_rx_burst(port, queue, (struct rte_mbuf **)mbufs, most);
}

uint16_t tw_send(uint16_t port, uint16_t queue, void **mbufs, uint16_t count)
{
    return rte_eth_tx_burst(port, queue, (struct rte_mbuf **)mbufs, count);
}

uint16_t tw_inject(const struct tw_pool *pool, uint16_t port, uint16_t queue,
                   const struct tw_copy *copies, uint16_t count)
{
    struct rte_mbuf *mbufs[MOST];
    count = RTE_MIN(count, MOST);
    if (rte_pktmbuf_alloc_bulk(pool->mempool, mbufs, count) != 0)
        return 0;
    for (uint16_t i = 0; i < count; i++) {
        rte_memcpy(rte_pktmbuf_mtod(mbufs[i], void *), copies[i].frame, copies[i].length);
        mbufs[i]->data_len = copies[i].length;
        mbufs[i]->pkt_len = copies[i].length;
        mbufs[i]->hash.rss = copies[i].hash;
        mbufs[i]->ol_flags = RTE_MBUF_F_RX_RSS_HASH;
    }
    uint16_t sent = rte_eth_tx_burst(port, queue, mbufs, count);
    if (sent < count)
        rte_pktmbuf_free_bulk(mbufs + sent, count - sent);
    return sent;
}

/* Sends packets, and frees those that the device did not accept. */
static inline uint16_t send_all(struct tw_queue to, struct rte_mbuf **mbufs, uint16_t count)
{
    uint16_t sent = rte_eth_tx_burst(to.port, to.queue, mbufs, count);
    if (unlikely(sent < count))
        rte_pktmbuf_free_bulk(mbufs + sent, count - sent);
    return sent;
}

uint16_t tw_refill(const struct tw_pool *pool, struct tw_queue from, struct tw_queue to,
                   const uint8_t *lines, const struct tw_frame *frames, uint16_t count)
{
    struct rte_mbuf *mbufs[MOST];
    count = RTE_MIN(count, MOST);
    unsigned came = rte_eth_rx_burst(from.port, from.queue, mbufs, count), kept = 0;
    for (unsigned i = 0; i < came; i++) {
        /* A frame cannot be written to a buffer that is from another pool, multi-segment or shared. */
        struct rte_mbuf *mbuf = mbufs[i];
        if (usable(pool, mbuf))
            mbufs[kept++] = mbuf;
        else
            rte_pktmbuf_free(mbuf);
    }
    if (kept < count && rte_pktmbuf_alloc_bulk(pool->mempool, mbufs + kept, count - kept) != 0)
        count = kept;
    for (unsigned i = 0; i < count; i++) {
        struct rte_mbuf *mbuf = mbufs[i];
        const struct tw_frame *frame = &frames[i];
        const uint8_t *bytes = lines + (uint64_t)frame->line * LINE;
        uint8_t *room = (uint8_t *)(mbuf + 1) + RTE_PKTMBUF_HEADROOM;
        /* Copies whole lines, for which there is room; most frames have one. */
        memcpy(room, bytes, LINE);
        if (frame->lines > 1)
            memcpy(room + LINE, bytes + LINE, (frame->lines - 1) * (size_t)LINE);
        mbuf->data_off = RTE_PKTMBUF_HEADROOM;
        mbuf->ol_flags = RTE_MBUF_F_RX_RSS_HASH;
        memcpy((uint8_t *)mbuf + offsetof(struct rte_mbuf, packet_type), &frame->packet_type, 16);
    }
    return send_all(to, mbufs, count);
}

uint16_t tw_forward(struct tw_queue from, struct tw_queue to, uint16_t most)
{
    struct rte_mbuf *mbufs[MOST];
    uint16_t count = rte_eth_rx_burst(from.port, from.queue, mbufs, RTE_MIN(most, MOST));
    return count == 0 ? 0 : send_all(to, mbufs, count);
}

int tw_inject_in_pieces(const struct tw_pool *pool, uint16_t port, uint16_t queue, const uint8_t *frame,
                        uint16_t length, uint16_t first)
{
    struct rte_mbuf *mbufs[2];
    int error = rte_pktmbuf_alloc_bulk(pool->mempool, mbufs, 2);
    if (error != 0)
        return error;
    memcpy(rte_pktmbuf_append(mbufs[0], first), frame, first);
    memcpy(rte_pktmbuf_append(mbufs[1], length - first), frame + first, length - first);
    error = rte_pktmbuf_chain(mbufs[0], mbufs[1]);
    if (error == 0 && rte_eth_tx_burst(port, queue, mbufs, 1) == 1)
        return 0;
    rte_pktmbuf_free(mbufs[0]);
    return error != 0 ? error : -ENOBUFS;
}

void tw_give_up(void **mbufs, uint16_t count)
{
    rte_pktmbuf_free_bulk((struct rte_mbuf **)mbufs, count);
}

void tw_give_back(const struct tw_pool *pool, const uint32_t *indexes, uint32_t count)
{
    void *mbufs[MOST];
    while (count > 0) {
        uint32_t part = RTE_MIN(count, MOST);
        for (uint32_t i = 0; i < part; i++)
            mbufs[i] = mbuf_of(pool, indexes[i]);
        rte_mempool_put_bulk(pool->mempool, mbufs, part);
        indexes += part;
        count -= part;
    }
}

int tw_take(const struct tw_pool *pool, uint32_t *indexes, uint32_t count)
{
    struct rte_mbuf *mbufs[MOST];
    if (count > MOST)
        return -EINVAL;
    int error = rte_pktmbuf_alloc_bulk(pool->mempool, mbufs, count);
    for (uint32_t i = 0; i < count && error == 0; i++) {
        uint64_t offset = (uint8_t *)(mbufs[i] + 1) - pool->base;
        indexes[i] = index_of(pool, offset);
    }
    return error;
}
