/* Functions for the tests, one for each -D: what is right, what is wrong, and what crashes. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <tailwater_json.h>
#include <tailwater_nf.h>
#include <unistd.h>

static int nothing(void *instance, struct tw_batch *batch) {
    (void)instance, (void)batch;
    return 0;
}

#if defined(COUNT)
/* Lets each flow have `packets` packets; keeps the flow's index and port, to see that they are right. */
struct shared {
    uint64_t limit;
    int *alive;
};
static int alive;
struct flow {
    uint64_t packets;
    uint32_t index;
    uint16_t port;
};
static int configure(const char *config, size_t bytes, void **shared, struct tw_error *error) {
    const char *limits = tw_json_field(config, "limits");
    uint64_t limit = 0;
    if (strlen(config) != bytes) abort();
    if (!limits) return tw_refuse(error, "", "expected limits: a list of maps with packets, found none");
    if (!tw_json_uint(tw_json_field(tw_json_first(limits), "packets"), &limit))
        return tw_refuse(error, "limits[0].packets", "expected a whole number of packets");
    struct shared *made = malloc(sizeof *made);
    if (!made) return tw_refuse(error, "", "expected more memory");
    made->limit = limit;
    made->alive = &alive;
    alive++;
    *shared = made;
    return 0;
}
static void release(void *shared) {
    alive--;
    free(shared);
}
static void *start(const void *shared) {
    struct shared *instance = malloc(sizeof *instance);
    if (instance) *instance = *(const struct shared *)shared;
    return instance;
}
static int process(void *instance, struct tw_batch *batch) {
    const struct shared *self = instance;
    for (uint32_t i = 0; i < batch->count; i++) {
        struct tw_packet *packet = &batch->packets[i];
        struct flow *flow = packet->state;
        if ((uintptr_t)flow % 8) return 2;
        if (packet->flags & TW_NEW_FLOW) {
            if (flow->packets) return 3; /* zero when new */
            flow->index = packet->flow;
            flow->port = tw_key_source_port(packet->key);
            batch->counters[0]++;
        } else if (flow->index != packet->flow || flow->port != tw_key_source_port(packet->key)) {
            return 4;
        }
        if (++flow->packets > self->limit) packet->verdict = TW_DROP(1);
        if (packet->frame[packet->payload_offset] == '!') packet->verdict = TW_DROP(0);
        if (packet->frame[packet->payload_offset] == '?') return 5;
    }
    return 0;
}
static void ended(void *instance, const struct tw_ended_flow *flows, uint32_t count, uint64_t *counters) {
    (void)instance;
    for (uint32_t i = 0; i < count; i++) {
        const struct flow *flow = flows[i].state;
        if (flow->port != tw_key_source_port(flows[i].key)) abort();
        counters[1] += flow->packets;
    }
}
static void explain(const void *instance, const struct tw_packet *packet, struct tw_explanation *explanation) {
    const struct flow *flow = packet->state;
    if (packet->verdict != TW_FORWARD && packet->verdict != TW_DROP(1)) {
        memset(explanation->text, 0xff, sizeof explanation->text);
        return;
    }
    snprintf(explanation->text, sizeof explanation->text, "%s%d from %u: %d of %d%s",
             packet->flags & TW_NEW_FLOW ? "new flow " : "flow ", (int)packet->flow, tw_key_source_port(packet->key),
             (int)flow->packets, (int)((const struct shared *)instance)->limit,
             packet->frame[packet->payload_offset] == '*' ? ", starred" : "");
}
static const struct tw_drop_reason reasons[] = {{"lost-for-fun", 1}, {"over-limit", 0}};
static const char *const counters[] = {"flows", "packets-of-ended-flows"};
const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD,       .name = "count",       .state_bytes = sizeof(struct flow),
    .drop_reasons = reasons, .drop_reason_count = 2, .counters = counters, .counter_count = 2,
    .configure = configure, .release = release,    .start = start,   .stop = free,
    .process = process,     .flows_ended = ended,    .explain = explain,
};

#elif defined(EARLIER)
/* Built with an earlier header: what lies behind the object is no part of it. */
const struct tw_function tailwater_function = {
    .abi_version = TW_ABI_VERSION, .size = offsetof(struct tw_function, explain), .name = "earlier",
    .process = nothing,            .explain = (void *)8,
};

#elif defined(OVERRUN)
static void explain(const void *instance, const struct tw_packet *packet, struct tw_explanation *explanation) {
    (void)instance, (void)packet;
    volatile char *text = explanation->text;
    for (int i = 0; i <= TW_MAX_EXPLANATION; i++) text[i] = 'o';
}
const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD, .name = "overrun", .process = nothing, .explain = explain,
};

#elif defined(REWRITE) || defined(REWRITE_HEADERS)
/* Does to a frame what its payload's first byte says. */
static int process(void *instance, struct tw_batch *batch) {
    (void)instance;
    for (uint32_t i = 0; i < batch->count; i++) {
        struct tw_packet *packet = &batch->packets[i];
        uint8_t *ip = packet->frame + packet->network_offset;
        switch (packet->frame[packet->payload_offset]) {
        case '.': /* no room */
            if (tw_push_front(packet, 65535) || tw_push_back(packet, 65535)) return 4;
            if (tw_pull_front(packet, 65535) || tw_pull_back(packet, 65535)) return 5;
            break;
        case 'V': /* push a VLAN tag */
            if (!tw_push_front(packet, 4)) return 1;
            memmove(packet->frame, packet->frame + 4, 12);
            memcpy(packet->frame + 12, "\x81\x00\x00\x07", 4);
            break;
        case 'P': /* another port */
            packet->frame[packet->transport_offset + 3] ^= 1;
            packet->flags |= TW_REWRITTEN;
            break;
        case 'G': /* grow the datagram by one byte */
            if (!tw_push_back(packet, 1)) return 2;
            packet->frame[packet->length - 1] = '+';
            ip[3]++;
            ip[25]++;
            break;
        case 'S': /* and shrink it by one */
            if (!tw_pull_back(packet, 1)) return 3;
            ip[3]--;
            ip[25]--;
            break;
        case 'M': /* no IP any more */
            packet->frame[12] = 0;
            packet->flags |= TW_REWRITTEN;
            break;
        case 'F': /* too far in front */
            packet->frame -= 4096;
            packet->flags |= TW_REWRITTEN;
            break;
        case 'L': /* too long */
            packet->length = 0x10000;
            packet->flags |= TW_REWRITTEN;
            break;
        case 'O': /* over the end */
            packet->length += packet->tailroom + 1u;
            packet->flags |= TW_REWRITTEN;
            break;
        case 'W': /* what was not asked about changes nothing */
            packet->frame = NULL;
            packet->length = 7;
            packet->key = NULL;
            packet->flow = 9;
            break;
        case 'D': /* a reason that there is none for */
            packet->verdict = 255;
            break;
        }
    }
    return 0;
}
const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD, .name = "rewrite", .process = process, .state_bytes = 1,
#ifdef REWRITE
    .flags = TW_REWRITES_FLOWS,
#else
    .flags = TW_HEADERS_ONLY,
#endif
};

#elif defined(NEWS)
/* Counts how often it is shown a flow, and sees that the flow's state stays. */
struct flow {
    uint32_t destination; /* of its packets as they are when they come here */
    uint32_t packets;
};
enum { SHOWN, SHOWN_AGAIN };
static int process(void *instance, struct tw_batch *batch) {
    (void)instance;
    for (uint32_t i = 0; i < batch->count; i++) {
        struct tw_packet *packet = &batch->packets[i];
        struct flow *flow = packet->state;
        if (packet->flags & TW_NEW_FLOW) {
            batch->counters[flow->packets > 0 ? SHOWN_AGAIN : SHOWN]++;
            flow->destination = tw_key_destination_v4(packet->key);
        }
        flow->packets++;
        if (flow->destination != tw_key_destination_v4(packet->key)) return 2;
    }
    return 0;
}
static const char *const counters[] = {"shown", "shown-again"};
const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD, .name = "news", .process = process, .state_bytes = sizeof(struct flow),
    .counters = counters, .counter_count = 2};
#elif defined(VERSION)
const struct tw_function tailwater_function = {
    .abi_version = 7, .size = sizeof(struct tw_function), .name = "version", .process = nothing};
#elif defined(SIZE)
const struct tw_function tailwater_function = {.abi_version = TW_ABI_VERSION, .size = 16, .name = "size"};
#elif defined(NAME)
const struct tw_function tailwater_function = {TW_FUNCTION_HEAD, .name = "A Name", .process = nothing};
#elif defined(NO_PROCESS)
const struct tw_function tailwater_function = {TW_FUNCTION_HEAD, .name = "no-process"};
#elif defined(STATE)
const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD, .name = "state", .process = nothing, .state_bytes = 1025};
#elif defined(FLAGS)
const struct tw_function tailwater_function = {TW_FUNCTION_HEAD, .name = "flags", .process = nothing, .flags = 64};
#elif defined(ENDS)
static void ended(void *instance, const struct tw_ended_flow *flows, uint32_t count, uint64_t *counters) {
    (void)instance, (void)flows, (void)count, (void)counters;
}
const struct tw_function tailwater_function = {TW_FUNCTION_HEAD, .name = "ends", .process = nothing, .flows_ended = ended};
#elif defined(REASONS)
const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD, .name = "reasons", .process = nothing, .drop_reason_count = 2};
#elif defined(TWICE)
static const char *const counters[] = {"one", "invalid"};
const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD, .name = "twice", .process = nothing, .counters = counters, .counter_count = 2};
#elif defined(NO_SYMBOL)
int something_else = 1;
#elif defined(UNDEFINED)
int missing_function(void);
static int process(void *instance, struct tw_batch *batch) {
    (void)instance, (void)batch;
    return missing_function();
}
const struct tw_function tailwater_function = {TW_FUNCTION_HEAD, .name = "undefined", .process = process};
#elif defined(START)
static void *start(const void *shared) {
    (void)shared;
    return NULL;
}
const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD, .name = "start", .process = nothing, .start = start};

#elif defined(CRASH_SEGV)
__attribute__((constructor)) static void crash(void) { raise(SIGSEGV); }
#elif defined(CRASH_ABORT)
__attribute__((constructor)) static void crash(void) {
    fprintf(stderr, "first line\nno table of \033[31mroutes\n\n");
    abort();
}
#elif defined(CRASH_EXIT)
__attribute__((constructor)) static void crash(void) { exit(3); }
#elif defined(CRASH_CONFIGURE)
static int configure(const char *config, size_t bytes, void **shared, struct tw_error *error) {
    (void)config, (void)bytes, (void)shared, (void)error;
    return *(volatile int *)8;
}
const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD, .name = "crash", .process = nothing, .configure = configure};
#elif defined(CRASH_START)
static void *start(const void *shared) {
    (void)shared;
    abort();
}
const struct tw_function tailwater_function = {TW_FUNCTION_HEAD, .name = "crash", .process = nothing, .start = start};
#elif defined(CRASH_STOP)
static void stop(void *instance) {
    (void)instance;
    kill(getpid(), SIGKILL);
}
const struct tw_function tailwater_function = {TW_FUNCTION_HEAD, .name = "crash", .process = nothing, .stop = stop};

#elif defined(REFUSES)
static int configure(const char *config, size_t bytes, void **shared, struct tw_error *error) {
    (void)bytes, (void)shared;
    if (tw_json_field(config, "silent")) return 9;
    if (tw_json_field(config, "long")) {
        memset(error, 'x', sizeof *error);
        return 1;
    }
    return tw_refuse(error, "a[1].b", "expected less, found more\nthan one line");
}
const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD, .name = "refuses", .process = nothing, .configure = configure};
#elif defined(PLAIN)
const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD, .name = "plain", .process = nothing, .flags = TW_HEADERS_ONLY};
#endif
