/* @NAME@: a network function for Tailwater.
 *
 * This skeleton limits the number of packets per flow. For everything else that a function can do, see tailwater_nf.h.
 */
#include "tailwater_json.h"
#include "tailwater_nf.h"
#include <stdlib.h>

/* Configuration shared read-only by all workers. */
struct shared {
    uint64_t packets;
};

/* State of a flow; zero when the flow is new. */
struct flow {
    uint64_t packets;
};

/* Indices in the lists at the end. */
enum { TOO_MANY };
enum { FLOWS };

static int configure(const char *config, size_t bytes, void **shared, struct tw_error *error) {
    uint64_t packets = 0;
    (void)bytes;
    if (!tw_json_uint(tw_json_field(config, "packets"), &packets))
        return tw_refuse(error, "packets", "expected packets, a whole number");
    struct shared *made = malloc(sizeof *made);
    if (!made) return tw_refuse(error, "", "there is no memory");
    made->packets = packets;
    *shared = made;
    return 0;
}

/* Runs for every batch: no allocation, lock, system call or output in here. */
static int process(void *instance, struct tw_batch *batch) {
    const struct shared *shared = instance;
    for (uint32_t i = 0; i < batch->count; i++) {
        struct tw_packet *packet = &batch->packets[i];
        struct flow *flow = packet->state;
        if (packet->flags & TW_NEW_FLOW) batch->counters[FLOWS]++;
        flow->packets++;
        if (flow->packets > shared->packets) packet->verdict = TW_DROP(TOO_MANY);
    }
    return 0;
}

/* Says in a line what decided, for packets that somebody traces: `tailwater trace packets`. Changes nothing. */
static void explain(const void *instance, const struct tw_packet *packet, struct tw_explanation *explanation) {
    const struct shared *shared = instance;
    const struct flow *flow = packet->state;
    tw_explain(explanation, "packets of the flow: ");
    tw_explain_number(explanation, flow->packets);
    tw_explain(explanation, ", limit ");
    tw_explain_number(explanation, shared->packets);
}

static const struct tw_drop_reason drop_reasons[] = {[TOO_MANY] = {.name = "too-many"}};
static const char *const counters[] = {[FLOWS] = "flows"};

const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD,
    .name = "@NAME@",
    .flags = TW_HEADERS_ONLY,
    .state_bytes = sizeof(struct flow),
    .drop_reasons = drop_reasons,
    .drop_reason_count = sizeof drop_reasons / sizeof *drop_reasons,
    .counters = counters,
    .counter_count = sizeof counters / sizeof *counters,
    .configure = configure,
    .release = free,
    .process = process,
    .explain = explain,
};
