/* SPDX-License-Identifier: Apache-2.0
 *
 * tailwater_test.h: test harness for a function, without Tailwater. One packet at a time, up to TW_TEST_FLOWS flows.
 */
#ifndef TAILWATER_TEST_H
#define TAILWATER_TEST_H

#include "tailwater_nf.h"
#include <stdio.h>
#include <stdlib.h>

#define TW_TEST_FLOWS 64
#define TW_TEST_ROOM 64

struct tw_test {
    const struct tw_function *function;
    void *shared;
    void *instance;
    uint64_t now_ns; /* arrival time of the next packet: set it freely, but never back */
    uint64_t counters[TW_MAX_COUNTERS];
    struct tw_error error; /* error reported by `configure` */
    struct tw_explanation explanation; /* of the last packet; empty if the function explains nothing */
    uint8_t buffer[2048];
    uint8_t *frame; /* the last packet after the function processed it */
    uint32_t length;
    uint32_t flow_count;
    struct {
        struct tw_flow_key key;
        uint64_t state[TW_MAX_STATE_BYTES / 8];
    } flows[TW_TEST_FLOWS];
};

/* Exits the test program if a condition is false. */
#define TW_CHECK(so)                                                          \
    do {                                                                      \
        if (!(so)) {                                                          \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #so);  \
            exit(1);                                                          \
        }                                                                     \
    } while (0)

/* Configures and starts a function. Returns 0, or 1 with test->error set if it rejects the configuration. */
static inline int tw_test_open(struct tw_test *test, const struct tw_function *function, const char *config) {
    memset(test, 0, sizeof *test);
    test->function = function;
    if (function->configure && function->configure(config, strlen(config), &test->shared, &test->error)) return 1;
    test->instance = function->start ? function->start(test->shared) : test->shared;
    TW_CHECK(test->instance || !function->start);
    return 0;
}

static inline void tw_test_u16(uint8_t *at, size_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

/* Processes a packet from 10.0.0.1 to 198.51.100.7 with these ports: UDP if `protocol` is 17, TCP if it is 6. Returns
 * the verdict. Checksums in the frame are zero. */
static inline uint8_t tw_test_send(struct tw_test *test, uint8_t protocol, uint16_t source_port,
                                   uint16_t destination_port, const void *payload, size_t bytes) {
    uint8_t *frame = test->buffer + TW_TEST_ROOM;
    size_t transport = protocol == 6 ? 20 : 8, length = 34 + transport + bytes;
    struct tw_flow_key key = {{0xc63364070a000001ull, 0, 0, 0, 0}};
    uint32_t flow = 0;
    TW_CHECK(length + 2 * TW_TEST_ROOM <= sizeof test->buffer);
    memset(test->buffer, 0, sizeof test->buffer);
    memcpy(frame, "\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x08\0\x45", 15);
    tw_test_u16(frame + 16, length - 14);
    frame[22] = 64;
    frame[23] = protocol;
    memcpy(frame + 26, "\x0a\0\0\x01\xc6\x33\x64\x07", 8);
    tw_test_u16(frame + 34, source_port);
    tw_test_u16(frame + 36, destination_port);
    if (protocol == 6)
        memcpy(frame + 46, "\x50\x10\xff\xff", 4);
    else
        tw_test_u16(frame + 38, transport + bytes);
    if (bytes) memcpy(frame + 34 + transport, payload, bytes);
    key.words[4] = source_port | (uint64_t)destination_port << 16 | (uint64_t)protocol << 32 | 4ull << 40;
    while (flow < test->flow_count && memcmp(&test->flows[flow].key, &key, sizeof key) != 0) flow++;
    TW_CHECK(flow < TW_TEST_FLOWS);
    struct tw_packet packet = {
        .frame = frame,
        .state = test->function->state_bytes ? test->flows[flow].state : NULL,
        .key = &key,
        .arrival_ns = test->now_ns,
        .length = (uint32_t)length,
        .flow = flow,
        .network_offset = 14,
        .transport_offset = 34,
        .payload_offset = (uint16_t)(34 + transport),
        .end = (uint16_t)length,
        .headroom = TW_TEST_ROOM,
        .tailroom = (uint16_t)(sizeof test->buffer - TW_TEST_ROOM - length),
        .ip_version = 4,
        .flags = flow == test->flow_count ? TW_NEW_FLOW : 0,
    };
    struct tw_batch batch = {.packets = &packet, .counters = test->counters, .count = 1};
    if (flow == test->flow_count) test->flows[test->flow_count++].key = key;
    TW_CHECK(test->function->process(test->instance, &batch) == 0);
    memset(&test->explanation, 0, sizeof test->explanation);
    if (test->function->explain) test->function->explain(test->instance, &packet, &test->explanation);
    TW_CHECK(memchr(test->explanation.text, 0, sizeof test->explanation.text));
    test->frame = packet.frame;
    test->length = packet.length;
    return packet.verdict;
}

/* Ends all flows, and stops the function. */
static inline void tw_test_close(struct tw_test *test) {
    for (uint32_t i = 0; i < test->flow_count && test->function->flows_ended; i++) {
        struct tw_ended_flow ended = {.key = &test->flows[i].key, .state = test->flows[i].state};
        test->function->flows_ended(test->instance, &ended, 1, test->counters);
    }
    if (test->function->stop) test->function->stop(test->instance);
    if (test->function->release) test->function->release(test->shared);
}

#endif
