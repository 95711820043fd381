/* SPDX-License-Identifier: Apache-2.0
 *
 * tailwater_nf.h: network functions for Tailwater, in C.
 *
 * A function is a shared library, or a program of its own, that has one object:
 *
 *     const struct tw_function tailwater_function = { TW_FUNCTION_HEAD, .name = "...", ... };
 *
 * Tailwater gives it batches of packets; it says what becomes of each. Docs: docs/functions-in-c.md.
 *
 * Rules that hold everywhere below:
 *   - Every pointer that the runtime passes is valid until the call returns, and no longer. Nothing else
 *     of the runtime is ever reachable: so the same source runs inside of the runtime's process
 *     and in a process of its own.
 *   - One instance is used by one thread at a time; different instances by different threads at once.
 *   - `process` runs for every batch: no allocation, lock, system call or output there.
 */
#ifndef TAILWATER_NF_H
#define TAILWATER_NF_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this file. A library built for another one is refused when it is loaded. */
#define TW_ABI_VERSION 2

/* The most reasons to drop, the most counters, and the most bytes of state for a flow. */
#define TW_MAX_DROP_REASONS 15
#define TW_MAX_COUNTERS 32
#define TW_MAX_STATE_BYTES 1024

/* A flow's 5-tuple. Look at it through the functions below. */
struct tw_flow_key {
    uint64_t words[5];
};

/* Packet flags, in tw_packet.flags. */
#define TW_NEW_FLOW 1u  /* set by the runtime, for functions with state: the first packet of its flow that this function
                         * sees, or the first since a function in front sent the flow elsewhere. Decide, and keep it
                         * in the state. */
#define TW_REWRITTEN 2u /* to be set by the function: it changed headers or the frame's length */

/* Verdicts. */
#define TW_FORWARD 0u
#define TW_DROP(reason) ((uint8_t)((reason) + 1u)) /* `reason` is a place in drop_reasons */

/* tw_packet.fragment */
#define TW_WHOLE 0u
#define TW_FIRST_FRAGMENT 1u
#define TW_LATER_FRAGMENT 2u /* no transport header */

/* A packet: always well-formed IP, of Ethernet. Offsets count from the frame's start:
 * network_offset <= transport_offset <= payload_offset <= end <= length. */
struct tw_packet {
    uint8_t *frame;                /* the Ethernet header's first byte */
    void *state;                   /* this function's state of the packet's flow; NULL if it has none */
    const struct tw_flow_key *key; /* the 5-tuple as it stands in the frame */
    uint64_t arrival_ns;           /* when it arrived, since the run's start: there is no other clock */
    uint32_t length;               /* bytes of the frame, without frame check sequence */
    uint32_t flow;                 /* the flow's number in the flow table; TW_NO_FLOW in a chain without one */
    uint32_t rss_hash;             /* what the NIC's receive-side scaling made of the packet */
    uint16_t network_offset;       /* IP header */
    uint16_t transport_offset;     /* TCP, UDP, ... header */
    uint16_t payload_offset;       /* behind it */
    uint16_t end;                  /* the IP datagram's end; what follows is padding */
    uint16_t headroom;             /* bytes free in front of the frame, */
    uint16_t tailroom;             /* and behind it */
    uint8_t ip_version;            /* 4 or 6 */
    uint8_t fragment;
    uint8_t flags;
    uint8_t verdict;               /* TW_FORWARD when the function is called */
    uint32_t reserved;
};

#define TW_NO_FLOW UINT32_MAX

struct tw_batch {
    struct tw_packet *packets; /* in order of arrival; several may be of one flow, and share its state */
    uint64_t *counters;        /* one for each of the function's counters: add to them */
    uint32_t count;
    uint32_t reserved;
};

/* A flow that has left the flow table. */
struct tw_ended_flow {
    const struct tw_flow_key *key; /* as the flow came to the chain */
    const void *state;             /* its last state */
};

/* Where a function says what is wrong with its configuration. */
struct tw_error {
    char message[512]; /* "expected ..., found ..." */
    char field[128];   /* the field of the configuration, such as "limits[2].rate"; empty for all of it */
};

struct tw_drop_reason {
    const char *name;  /* lower-case letters, digits and dashes: reports show function/name */
    uint32_t is_loss;  /* 1 if packets are lost for want of room, 0 if dropped because the function decided so */
};

/* Function flags. */
#define TW_HEADERS_ONLY 1u   /* never looks at or changes anything behind payload_offset, nor the frame's length */
#define TW_REWRITES_FLOWS 2u /* gives packets other addresses or ports: functions behind it decide anew */

/* What a library is. Tailwater copies it when it loads the library. */
struct tw_function {
    uint32_t abi_version; /* TW_ABI_VERSION */
    uint32_t size;        /* sizeof(struct tw_function): a later version may have more at its end */
    const char *name;     /* lower-case letters, digits and dashes, at most 63: the name in reports */
    uint32_t flags;
    uint32_t state_bytes; /* for each flow; zero when the flow is new, aligned to 8. 0: no look-up for this function */
    const struct tw_drop_reason *drop_reasons;
    const char *const *counters; /* names: reports show function/name */
    uint32_t drop_reason_count;
    uint32_t counter_count;

    /* Makes what all instances share (rules, tables), read-only from then on. `config` is the chain spec's
     * `config` as JSON, "{}" if there is none, ended by a zero byte that `bytes` does not count. Returns 0
     * with *shared set, or anything else with *error filled in. May be NULL: then a configuration that is
     * not empty is refused, and `shared` is NULL. Called in more than one process: first in one that ends
     * soon, so that a crash costs nothing. */
    int (*configure)(const char *config, size_t bytes, void **shared, struct tw_error *error);
    /* Gives back what `configure` made, after the last instance. May be NULL. */
    void (*release)(void *shared);

    /* Makes an instance, for one worker. NULL means that it cannot be had. May be NULL: then every instance
     * is `shared`. */
    void *(*start)(const void *shared);
    /* Ends an instance. May be NULL. */
    void (*stop)(void *instance);

    /* Processes a batch. Returns 0; anything else ends the run: the function cannot go on. */
    int (*process)(void *instance, struct tw_batch *batch);

    /* Flows that `process` has seen have left the flow table. All that are still there follow when the run
     * ends. For functions with state. May be NULL. */
    void (*flows_ended)(void *instance, const struct tw_ended_flow *flows, uint32_t count, uint64_t *counters);

    /* Not 0: the bytes of a flow's state mean the same to all instances of the function, on whatever server, and this is
     * the version of what they mean. Then a chain's `state` keeps them in Redis, too: see `tw_read`. No times in it, which
     * count from a run's start. */
    uint32_t state_version;
    uint32_t reserved;
};

/* The first two fields of a tw_function. */
#define TW_FUNCTION_HEAD .abi_version = TW_ABI_VERSION, .size = sizeof(struct tw_function)

/* What a library exports, also under -fvisibility=hidden. */
__attribute__((visibility("default"))) extern const struct tw_function tailwater_function;

/* --- programs of their own --- */

/* The whole `main` of a program that is this function, which runs in a process of its own:
 *
 *     int main(int argc, char **argv) { return tailwater_nf_run(&tailwater_function, argc, argv); }
 *
 * Link it with libtailwater_nf. `tailwater run --isolation` starts it, with a socket as its standard input; it ends with
 * the run. Returns the exit code: 0, 1 if the run failed, 2 if it cannot be run so. */
int tailwater_nf_run(const struct tw_function *function, int argc, char **argv);

/* --- flow keys --- */

/* The IP protocol: 6 TCP, 17 UDP, ... */
static inline uint8_t tw_key_protocol(const struct tw_flow_key *key) { return (uint8_t)(key->words[4] >> 32); }
/* 4 or 6. */
static inline uint8_t tw_key_ip_version(const struct tw_flow_key *key) { return (uint8_t)(key->words[4] >> 40); }
/* Whether the key is that of fragments, which have no ports. */
static inline int tw_key_is_fragment(const struct tw_flow_key *key) { return (int)(key->words[4] >> 48 & 1); }
/* Ports, in host byte order; 0 where there are none. */
static inline uint16_t tw_key_source_port(const struct tw_flow_key *key) { return (uint16_t)key->words[4]; }
static inline uint16_t tw_key_destination_port(const struct tw_flow_key *key) { return (uint16_t)(key->words[4] >> 16); }
/* IPv4 addresses, in host byte order: 10.0.0.1 is 0x0a000001. */
static inline uint32_t tw_key_source_v4(const struct tw_flow_key *key) { return (uint32_t)key->words[0]; }
static inline uint32_t tw_key_destination_v4(const struct tw_flow_key *key) { return (uint32_t)(key->words[0] >> 32); }
/* IPv6 addresses, as 16 bytes in the order of the wire. */
static inline void tw_key_address_v6(const struct tw_flow_key *key, int first_word, uint8_t address[16]) {
    for (int i = 0; i < 8; i++) {
        address[i] = (uint8_t)(key->words[first_word + 1] >> (56 - 8 * i));
        address[8 + i] = (uint8_t)(key->words[first_word] >> (56 - 8 * i));
    }
}
static inline void tw_key_source_v6(const struct tw_flow_key *key, uint8_t address[16]) { tw_key_address_v6(key, 0, address); }
static inline void tw_key_destination_v6(const struct tw_flow_key *key, uint8_t address[16]) { tw_key_address_v6(key, 2, address); }

/* --- flow state --- */

/* The state of the packet's flow, to read. It is here: with a `state_version`, and where the chain has a `state`, what
 * another instance made of it was fetched before the packet came. On TW_NEW_FLOW it is zero, or what another instance
 * left. */
static inline const void *tw_read(const struct tw_packet *packet) { return packet->state; }
/* The same, to change. What was changed is written to the store after the batch, and the packet, as all behind it of its
 * flow, leaves when the store has it: what it says to the world is never forgotten. Nothing to wait for here. */
static inline void *tw_update(struct tw_packet *packet) { return packet->state; }

/* --- changing frames --- */

/* Each sets TW_REWRITTEN: afterwards the runtime parses the frame again, and drops the packet if it is no
 * well-formed IP any more. The packet's offsets stay as they were. Checksums are the function's. */

/* Lets the frame start `bytes` earlier; the new bytes hold anything. 0, with nothing changed, without room. */
static inline int tw_push_front(struct tw_packet *packet, uint16_t bytes) {
    if (bytes > packet->headroom) return 0;
    packet->frame -= bytes;
    packet->length += bytes;
    packet->headroom = (uint16_t)(packet->headroom - bytes);
    packet->flags |= TW_REWRITTEN;
    return 1;
}
/* Takes `bytes` off the frame's start. 0, with nothing changed, if it is shorter. */
static inline int tw_pull_front(struct tw_packet *packet, uint16_t bytes) {
    if (bytes > packet->length) return 0;
    packet->frame += bytes;
    packet->length -= bytes;
    packet->headroom = (uint16_t)(packet->headroom + bytes);
    packet->flags |= TW_REWRITTEN;
    return 1;
}
/* Makes the frame `bytes` longer at its end; the new bytes hold anything. 0, with nothing changed, without room. */
static inline int tw_push_back(struct tw_packet *packet, uint16_t bytes) {
    if (bytes > packet->tailroom) return 0;
    packet->length += bytes;
    packet->tailroom = (uint16_t)(packet->tailroom - bytes);
    packet->flags |= TW_REWRITTEN;
    return 1;
}
/* Takes `bytes` off the frame's end. 0, with nothing changed, if it is shorter. */
static inline int tw_pull_back(struct tw_packet *packet, uint16_t bytes) {
    if (bytes > packet->length) return 0;
    packet->length -= bytes;
    packet->tailroom = (uint16_t)(packet->tailroom + bytes);
    packet->flags |= TW_REWRITTEN;
    return 1;
}

/* --- errors --- */

/* Fills in an error of `configure` and returns what `configure` is to return. */
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
