/* Checks that every flow's packets arrive in order, on any instance: the flow state counts them, and each carries its
 * number in the payload. The first packet out of order ends the run. Then the function marks the payload, so that the
 * end of a frame is written, too. */
#include <tailwater_nf.h>

struct flow {
    uint32_t packets;
    uint32_t index;
};

enum { FLOWS, PACKETS_OF_ENDED_FLOWS };

static uint32_t word(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static int process(void *instance, struct tw_batch *batch) {
    (void)instance;
    for (uint32_t i = 0; i < batch->count; i++) {
        struct tw_packet *packet = &batch->packets[i];
        struct flow *flow = packet->state;
        if (packet->flags & TW_NEW_FLOW) {
            if (flow->packets != 0) return 2;
            flow->index = packet->flow;
            batch->counters[FLOWS]++;
        }
        flow->packets++;
        if (packet->flow != flow->index) return 3;
        if (NUMBERED && word(packet->frame + packet->payload_offset + 4) != flow->packets) return 4;
        if (NUMBERED && packet->end > packet->payload_offset + 8) packet->frame[packet->end - 1] ^= (uint8_t)flow->packets;
    }
    return 0;
}

static void flows_ended(void *instance, const struct tw_ended_flow *flows, uint32_t count, uint64_t *counters) {
    (void)instance;
    for (uint32_t i = 0; i < count; i++)
        counters[PACKETS_OF_ENDED_FLOWS] += ((const struct flow *)flows[i].state)->packets;
}

static const char *const counters[] = {[FLOWS] = "flows", [PACKETS_OF_ENDED_FLOWS] = "packets-of-ended-flows"};

const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD,
    .name = "numbered",
    .state_bytes = sizeof(struct flow),
    .counters = counters,
    .counter_count = 2,
    .process = process,
    .flows_ended = flows_ended,
};
