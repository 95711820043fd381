/* Limits each flow to a rate in packets per second and a burst, by a token bucket per flow.
 *
 *     - library:
 *         file: functions/rate-limit/rate_limit.so
 *         config: {packetsPerSecond: 1000, burst: 32}
 */
#include <stdlib.h>
#include <tailwater_json.h>
#include <tailwater_nf.h>

/* Limits, shared by all workers. */
struct limits {
    uint64_t cost_ns;  /* time to gain the token of one packet */
    uint64_t burst_ns; /* capacity of the bucket, as time */
};

/* State of a flow, in nanoseconds rather than tokens, so that no fraction is lost. */
struct bucket {
    uint64_t saved_ns;
    uint64_t last_ns;
    uint64_t dropped;
};

enum { OVER_RATE };
enum { FLOWS, LIMITED_FLOWS };

static int configure(const char *config, size_t bytes, void **shared, struct tw_error *error) {
    uint64_t rate = 0, burst = 32;
    char name[32];
    (void)bytes;
    for (const char *at = config; tw_json_each(&at, name, sizeof name);)
        if (strcmp(name, "packetsPerSecond") != 0 && strcmp(name, "burst") != 0)
            return tw_refuse(error, name, "expected one of the fields packetsPerSecond, burst");
    if (!tw_json_uint(tw_json_field(config, "packetsPerSecond"), &rate) || rate < 1 || rate > 1000000000)
        return tw_refuse(error, "packetsPerSecond", "expected packetsPerSecond, a whole number from 1 to 1000000000");
    if (tw_json_field(config, "burst") &&
        (!tw_json_uint(tw_json_field(config, "burst"), &burst) || burst < 1 || burst > 1000000))
        return tw_refuse(error, "burst", "expected a whole number from 1 to 1000000");
    struct limits *limits = malloc(sizeof *limits);
    if (!limits) return tw_refuse(error, "", "there is no memory");
    limits->cost_ns = 1000000000 / rate;
    limits->burst_ns = limits->cost_ns * burst;
    *shared = limits;
    return 0;
}

static int process(void *instance, struct tw_batch *batch) {
    const struct limits *limits = instance;
    for (uint32_t i = 0; i < batch->count; i++) {
        struct tw_packet *packet = &batch->packets[i];
        struct bucket *bucket = packet->state;
        if (packet->flags & TW_NEW_FLOW && bucket->last_ns == 0) {
            bucket->saved_ns = limits->burst_ns;
            batch->counters[FLOWS]++;
        } else if (packet->arrival_ns > bucket->last_ns) {
            uint64_t saved = bucket->saved_ns + (packet->arrival_ns - bucket->last_ns);
            bucket->saved_ns = saved < limits->burst_ns ? saved : limits->burst_ns;
        }
        bucket->last_ns = packet->arrival_ns;
        if (bucket->saved_ns >= limits->cost_ns) {
            bucket->saved_ns -= limits->cost_ns;
        } else {
            bucket->dropped++;
            packet->verdict = TW_DROP(OVER_RATE);
        }
    }
    return 0;
}

static void flows_ended(void *instance, const struct tw_ended_flow *flows, uint32_t count, uint64_t *counters) {
    (void)instance;
    for (uint32_t i = 0; i < count; i++) {
        const struct bucket *bucket = flows[i].state;
        counters[LIMITED_FLOWS] += bucket->dropped > 0;
    }
}

static const struct tw_drop_reason drop_reasons[] = {[OVER_RATE] = {.name = "over-rate"}};
static const char *const counters[] = {[FLOWS] = "flows", [LIMITED_FLOWS] = "limited-flows"};

/* Workers have no data of their own. Without `start` and `stop`, every instance is the data `configure` created. */
const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD,
    .name = "rate-limit",
    .flags = TW_HEADERS_ONLY,
    .state_bytes = sizeof(struct bucket),
    .drop_reasons = drop_reasons,
    .drop_reason_count = 1,
    .counters = counters,
    .counter_count = 2,
    .configure = configure,
    .release = free,
    .process = process,
    .flows_ended = flows_ended,
};
