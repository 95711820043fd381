/* SPDX-License-Identifier: Apache-2.0
 *
 * tailwater_nf.h: network functions for Tailwater, in C.
 *
 * A function is a shared library or a program that exports one object:
 *
 *     const struct tw_function tailwater_function = { TW_FUNCTION_HEAD, .name = "...", ... };
 *
 * Tailwater passes it batches of packets, and it sets a verdict on each. Docs:
 * docs/how-to/write-a-function-in-c.md.
 *
 * Rules for everything below:
 *   - A pointer passed by the runtime is valid until the call returns, and no longer. A function cannot access
 *     anything else of the runtime, so the same source runs inside the runtime's process and in a process of
 *     its own.
 *   - One thread at a time uses an instance. Different threads use different instances concurrently.
 *   - `process` runs for every batch: it must not allocate, lock, make system calls or print.
 */
#ifndef TAILWATER_NF_H
#define TAILWATER_NF_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this file. A library built for another version is rejected at load time. */
#define TW_ABI_VERSION 2

/* Maximum number of drop reasons and of counters, and maximum size of a flow's state in bytes. */
#define TW_MAX_DROP_REASONS 15
#define TW_MAX_COUNTERS 32
#define TW_MAX_STATE_BYTES 1024

/* Size of an explanation in bytes, with its terminating zero byte. */
#define TW_MAX_EXPLANATION 192

/* 5-tuple of a flow. Read it with the functions below. */
struct tw_flow_key {
    uint64_t words[5];
};

/* Packet flags, in tw_packet.flags. */
#define TW_NEW_FLOW 1u  /* set by the runtime, for functions with state: first packet of its flow in this function, or
                         * first after a preceding function rewrote the flow. Decide now, and store the decision in
                         * the state. */
#define TW_REWRITTEN 2u /* set by the function if it changed headers or the frame's length */

/* Verdicts. */
#define TW_FORWARD 0u
#define TW_DROP(reason) ((uint8_t)((reason) + 1u)) /* `reason` is an index into drop_reasons */

/* tw_packet.fragment */
#define TW_WHOLE 0u
#define TW_FIRST_FRAGMENT 1u
#define TW_LATER_FRAGMENT 2u /* no transport header */

/* Packet: always a well-formed IP packet in an Ethernet frame. Offsets count from the frame's start:
 * network_offset <= transport_offset <= payload_offset <= end <= length. */
struct tw_packet {
    uint8_t *frame;                /* first byte of the Ethernet header */
    void *state;                   /* this function's state of the packet's flow; NULL if it has none */
    const struct tw_flow_key *key; /* 5-tuple of the frame */
    uint64_t arrival_ns;           /* arrival time since the run's start; there is no other clock */
    uint32_t length;               /* length of the frame in bytes, without frame check sequence */
    uint32_t flow;                 /* index of the flow in the flow table; TW_NO_FLOW in a chain without one */
    uint32_t rss_hash;             /* hash computed by the NIC (receive-side scaling) */
    uint16_t network_offset;       /* IP header */
    uint16_t transport_offset;     /* TCP, UDP, ... header */
    uint16_t payload_offset;       /* transport payload */
    uint16_t end;                  /* end of the IP datagram; padding follows */
    uint16_t headroom;             /* free bytes before the frame */
    uint16_t tailroom;             /* free bytes after the frame */
    uint8_t ip_version;            /* 4 or 6 */
    uint8_t fragment;
    uint8_t flags;
    uint8_t verdict;               /* TW_FORWARD when the function is called */
    uint32_t reserved;
};

#define TW_NO_FLOW UINT32_MAX

struct tw_batch {
    struct tw_packet *packets; /* in order of arrival; packets of the same flow share its state */
    uint64_t *counters;        /* one for each counter of the function: add to them */
    uint32_t count;
    uint32_t reserved;
};

/* Flow that has left the flow table. */
struct tw_ended_flow {
    const struct tw_flow_key *key; /* key under which the flow entered the chain */
    const void *state;             /* last state */
};

/* Configuration error reported by a function. */
struct tw_error {
    char message[512]; /* "expected ..., found ..." */
    char field[128];   /* field of the configuration, such as "limits[2].rate"; empty for the whole configuration */
};

/* Explanation of a decision, which traces show: a line of UTF-8 text, empty at first, that ends with a zero byte. Add
 * to it with `tw_explain` and `tw_explain_number` below, or with snprintf. */
struct tw_explanation {
    char text[TW_MAX_EXPLANATION];
};

struct tw_drop_reason {
    const char *name;  /* lower-case letters, digits and dashes: reports show function/name */
    uint32_t is_loss;  /* 1 if packets are lost for lack of resources, 0 if dropped by the function's decision */
};

/* Function flags. */
#define TW_HEADERS_ONLY 1u   /* never accesses bytes behind payload_offset, nor changes the frame's length */
#define TW_REWRITES_FLOWS 2u /* changes addresses or ports: later functions decide again */

/* Description of a function. Tailwater copies it when it loads the library. */
struct tw_function {
    uint32_t abi_version; /* TW_ABI_VERSION */
    uint32_t size;        /* sizeof(struct tw_function): a later version may append fields */
    const char *name;     /* name in reports: at most 63 lower-case letters, digits and dashes */
    uint32_t flags;
    uint32_t state_bytes; /* state per flow, zero in a new flow, aligned to 8. 0: stateless, no flow look-up needed */
    const struct tw_drop_reason *drop_reasons;
    const char *const *counters; /* names: reports show function/name */
    uint32_t drop_reason_count;
    uint32_t counter_count;

    /* Creates the data that all instances share (rules, tables), read-only from then on. `config` is the chain
     * spec's `config` as JSON, "{}" if there is none. `bytes` does not count its terminating zero byte. Returns 0
     * with *shared set, or any other value with *error filled in. If NULL, any non-empty configuration is
     * rejected, and `shared` is NULL. It runs first in a short-lived child process, so that a crash does no
     * harm. */
    int (*configure)(const char *config, size_t bytes, void **shared, struct tw_error *error);
    /* Frees the data that `configure` created, after the last instance. May be NULL. */
    void (*release)(void *shared);

    /* Creates an instance for one worker. Returns NULL on failure. If `start` is NULL, every instance is
     * `shared`. */
    void *(*start)(const void *shared);
    /* Destroys an instance. May be NULL. */
    void (*stop)(void *instance);

    /* Processes a batch. Returns 0; any other value means that the function cannot continue, and ends the run. */
    int (*process)(void *instance, struct tw_batch *batch);

    /* Called when flows that `process` has seen leave the flow table, and at the end of the run for those still
     * in it. For functions with state. May be NULL. */
    void (*flows_ended)(void *instance, const struct tw_ended_flow *flows, uint32_t count, uint64_t *counters);

    /* Version of the state's format, if the bytes of a flow's state mean the same to all instances on all servers; 0
     * otherwise. With a version, a chain's `state` also stores them in Redis: see `tw_read`. Such state must not
     * contain times, which count from a run's start. */
    uint32_t state_version;
    uint32_t reserved;

    /* Explains in a line what `process` has just decided on a packet: the rule or state behind it. Called only for
     * packets that somebody traces, after `process`. The packet is as the function left it, with its verdict and with
     * its flow's state after the batch; `key` is that of the frame in front of the function. It must not change packet,
     * state or instance, and is not called for packets that the runtime itself drops. May be NULL. Functions built with
     * a header without this field, whose `size` is smaller, have none. */
    void (*explain)(const void *instance, const struct tw_packet *packet, struct tw_explanation *explanation);
};

/* The first two fields of a tw_function. */
#define TW_FUNCTION_HEAD .abi_version = TW_ABI_VERSION, .size = sizeof(struct tw_function)

/* Symbol that a library exports, under -fvisibility=hidden too. */
__attribute__((visibility("default"))) extern const struct tw_function tailwater_function;

/* --- functions as programs --- */

/* The whole `main` of a program that is this function, and runs in a process of its own:
 *
 *     int main(int argc, char **argv) { return tailwater_nf_run(&tailwater_function, argc, argv); }
 *
 * Link it with libtailwater_nf. `tailwater run --isolation` starts it with a socket as its standard input; it ends with
 * the run. Returns the exit code: 0, 1 if the run failed, 2 if no server started it, or the function was rejected. */
int tailwater_nf_run(const struct tw_function *function, int argc, char **argv);

/* --- flow keys --- */

/* IP protocol: 6 TCP, 17 UDP, ... */
static inline uint8_t tw_key_protocol(const struct tw_flow_key *key) { return (uint8_t)(key->words[4] >> 32); }
/* IP version: 4 or 6. */
static inline uint8_t tw_key_ip_version(const struct tw_flow_key *key) { return (uint8_t)(key->words[4] >> 40); }
/* Returns 1 for the key of fragments, which have no ports, and 0 otherwise. */
static inline int tw_key_is_fragment(const struct tw_flow_key *key) { return (int)(key->words[4] >> 48 & 1); }
/* Ports in host byte order; 0 if there are none. */
static inline uint16_t tw_key_source_port(const struct tw_flow_key *key) { return (uint16_t)key->words[4]; }
static inline uint16_t tw_key_destination_port(const struct tw_flow_key *key) { return (uint16_t)(key->words[4] >> 16); }
/* IPv4 addresses in host byte order: 10.0.0.1 is 0x0a000001. */
static inline uint32_t tw_key_source_v4(const struct tw_flow_key *key) { return (uint32_t)key->words[0]; }
static inline uint32_t tw_key_destination_v4(const struct tw_flow_key *key) { return (uint32_t)(key->words[0] >> 32); }
/* IPv6 addresses as 16 bytes in network byte order. */
static inline void tw_key_address_v6(const struct tw_flow_key *key, int first_word, uint8_t address[16]) {
    for (int i = 0; i < 8; i++) {
        address[i] = (uint8_t)(key->words[first_word + 1] >> (56 - 8 * i));
        address[8 + i] = (uint8_t)(key->words[first_word] >> (56 - 8 * i));
    }
}
static inline void tw_key_source_v6(const struct tw_flow_key *key, uint8_t address[16]) { tw_key_address_v6(key, 0, address); }
static inline void tw_key_destination_v6(const struct tw_flow_key *key, uint8_t address[16]) { tw_key_address_v6(key, 2, address); }

/* --- flow state --- */

/* Returns the state of the packet's flow, for reading. The state is local: with a `state_version`, in a chain with
 * `state`, it was fetched before the packet arrived, if another instance had written it. On TW_NEW_FLOW it is zero, or
 * the state another instance left. */
static inline const void *tw_read(const struct tw_packet *packet) { return packet->state; }
/* Returns the same state, for changes. They are written to the store after the batch. This packet and all later ones
 * of its flow are sent once the store has them, so state visible in sent packets is never lost. Does not block. */
static inline void *tw_update(struct tw_packet *packet) { return packet->state; }

/* --- changing frames --- */

/* Each sets TW_REWRITTEN: afterwards the runtime parses the frame again, and drops the packet if it is no longer
 * well-formed IP. The packet's offsets are not updated. The function must update checksums. */

/* Adds `bytes` bytes, of unspecified value, at the frame's start. Returns 0, with nothing changed, without room. */
static inline int tw_push_front(struct tw_packet *packet, uint16_t bytes) {
    if (bytes > packet->headroom) return 0;
    packet->frame -= bytes;
    packet->length += bytes;
    packet->headroom = (uint16_t)(packet->headroom - bytes);
    packet->flags |= TW_REWRITTEN;
    return 1;
}
/* Removes `bytes` bytes from the frame's start. Returns 0, with nothing changed, if the frame is shorter. */
static inline int tw_pull_front(struct tw_packet *packet, uint16_t bytes) {
    if (bytes > packet->length) return 0;
    packet->frame += bytes;
    packet->length -= bytes;
    packet->headroom = (uint16_t)(packet->headroom + bytes);
    packet->flags |= TW_REWRITTEN;
    return 1;
}
/* Adds `bytes` bytes, of unspecified value, at the frame's end. Returns 0, with nothing changed, without room. */
static inline int tw_push_back(struct tw_packet *packet, uint16_t bytes) {
    if (bytes > packet->tailroom) return 0;
    packet->length += bytes;
    packet->tailroom = (uint16_t)(packet->tailroom - bytes);
    packet->flags |= TW_REWRITTEN;
    return 1;
}
/* Removes `bytes` bytes from the frame's end. Returns 0, with nothing changed, if the frame is shorter. */
static inline int tw_pull_back(struct tw_packet *packet, uint16_t bytes) {
    if (bytes > packet->length) return 0;
    packet->length -= bytes;
    packet->tailroom = (uint16_t)(packet->tailroom + bytes);
    packet->flags |= TW_REWRITTEN;
    return 1;
}

/* --- explanations --- */

/* Appends text to an explanation, as much as fits. */
static inline void tw_explain(struct tw_explanation *explanation, const char *text) {
    size_t length = 0;
    while (length < TW_MAX_EXPLANATION - 1 && explanation->text[length]) length++;
    while (length < TW_MAX_EXPLANATION - 1 && *text) explanation->text[length++] = *text++;
    explanation->text[length] = 0;
}
/* Appends a decimal number. */
static inline void tw_explain_number(struct tw_explanation *explanation, uint64_t number) {
    char digits[21];
    int at = 20;
    digits[at] = 0;
    do digits[--at] = (char)('0' + number % 10);
    while (number /= 10);
    tw_explain(explanation, digits + at);
}

/* --- errors --- */

/* Fills in an error of `configure`, and returns the value that `configure` must return. */
static inline int tw_refuse(struct tw_error *error, const char *field, const char *message) {
    strncpy(error->field, field, sizeof error->field - 1);
    error->field[sizeof error->field - 1] = 0;
    strncpy(error->message, message, sizeof error->message - 1);
    error->message[sizeof error->message - 1] = 0;
    return 1;
}

#ifdef __cplusplus
}
#endif

#endif
