/* Traffic and measurement for any DPDK program, preloaded into it (LD_PRELOAD). Packets that a `net_null` device
   delivers get the next frames of a file by a copy, as a NIC writes them to memory. After a warm-up, the polling
   thread's own processor time for a fixed number of packets is written to a file, so all programs are measured alike.

   Only DPDK's public functions are used: callbacks of a queue, added before the device starts. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <rte_ethdev.h>
#include <rte_memcpy.h>

#define LINE 64u
/* Packets ahead whose frames are prefetched. */
#define AHEAD 16u

/* Layout of the file: this header, the frames' places, then lines of 64 bytes. Written by traffic.rs. */
struct header {
    uint64_t frames;
    uint64_t lines_at;
};
struct place {
    uint32_t line;
    uint32_t bytes;
};

static const struct place *places;
static const uint8_t *lines;
static uint64_t frames, next, received, sent, sent_before, received_before, start_ns, warm_up, measured;
static const char *result;

static uint64_t number(const char *name)
{
    const char *text = getenv(name);
    return text == NULL ? 0 : strtoull(text, NULL, 10);
}

static uint64_t thread_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void fail(const char *why)
{
    fprintf(stderr, "peers' device: %s\n", why);
    exit(1);
}

static void map(void)
{
    const char *path = getenv("PEERS_FRAMES");
    struct stat status;
    result = getenv("PEERS_RESULT");
    warm_up = number("PEERS_WARM_UP");
    measured = number("PEERS_PACKETS");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || result == NULL || measured == 0 || fstat(file, &status) != 0)
        fail("PEERS_FRAMES, PEERS_RESULT and PEERS_PACKETS are not set, or there is no such file");
    const uint8_t *base = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
    close(file);
    if (base == MAP_FAILED)
        fail("the frames cannot be mapped");
    const struct header *header = (const void *)base;
    frames = header->frames;
    places = (const void *)(header + 1);
    lines = base + header->lines_at;
}

/* Written to a file of another name first: a reader sees all of it or nothing. */
static void report(uint64_t nanoseconds)
{
    char part[4096];
    snprintf(part, sizeof(part), "%s.part", result);
    FILE *file = fopen(part, "w");
    if (file == NULL)
        fail("the result cannot be written");
    fprintf(file, "%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", received - received_before, nanoseconds,
            sent - sent_before);
    fclose(file);
    rename(part, result);
}

static void count(uint16_t packets)
{
    received += packets;
    if (start_ns == 0 && received >= warm_up) {
        start_ns = thread_ns();
        received_before = received;
        sent_before = sent;
    } else if (measured != 0 && start_ns != 0 && received - received_before >= measured) {
        report(thread_ns() - start_ns);
        measured = 0;
    }
}

static uint16_t fill(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint16_t packet_count, uint16_t most,
                     void *unused)
{
    (void)port, (void)queue, (void)most, (void)unused;
    for (uint16_t i = 0; i < packet_count; i++) {
        const struct place *place = &places[next];
        const uint8_t *from = lines + (uint64_t)place->line * LINE;
        uint8_t *to = rte_pktmbuf_mtod(packets[i], uint8_t *);
        rte_prefetch0(from + AHEAD * LINE);
        for (uint32_t done = 0; done < place->bytes; done += LINE)
            rte_mov64(to + done, from + done);
        packets[i]->data_len = (uint16_t)place->bytes;
        packets[i]->pkt_len = place->bytes;
        if (++next == frames)
            next = 0;
    }
    count(packet_count);
    return packet_count;
}

static uint16_t count_sent(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint16_t packet_count,
                           void *unused)
{
    (void)port, (void)queue, (void)packets, (void)unused;
    sent += packet_count;
    return packet_count;
}

int rte_eth_dev_start(uint16_t port)
{
    int (*start)(uint16_t) = (int (*)(uint16_t))dlsym(RTLD_NEXT, "rte_eth_dev_start");
    if (start == NULL)
        fail("the program does not use DPDK's shared libraries");
    if (frames == 0) {
        map();
        if (rte_eth_add_first_rx_callback(port, 0, fill, NULL) == NULL ||
            rte_eth_add_tx_callback(port, 0, count_sent, NULL) == NULL)
            fail("the device's queues take no callbacks");
    }
    return start(port);
}
