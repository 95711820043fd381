/* Function that counts the packets of each flow, and misbehaves on packets whose payload begins with a letter of its
 * configuration, as that letter says. Every other packet passes.
 *
 * Built by: clang --target=wasm32 -O2 -std=c11 -nostdlib -mbulk-memory
 * -I ../../../sdk/include/wasm -I ../../../sdk/include
 * -Wl,--no-entry,--export=tailwater_function,--export-table,--stack-first,-z,stack-size=16384,--strip-all
 * -o hostile.wasm hostile.c ../../../sdk/include/wasm/libc.c
 */
#include <tailwater_json.h>
#include <tailwater_nf.h>

struct flow {
    uint64_t packets;
};

enum { REFUSED };
enum { PACKETS, PAGES, ENDED };

static char mode[8];
static volatile uint32_t depth;

static int configure(const char *config, size_t bytes, void **shared, struct tw_error *error) {
    const char *given = tw_json_field(config, "mode");
    *shared = mode;
    if (!given) return bytes == 2 ? 0 : tw_refuse(error, "", "expected mode");
    if (tw_json_string(given, mode, sizeof mode) != 1) return tw_refuse(error, "mode", "expected a letter");
    while (*mode == 'L') depth++;
    return 0;
}

__attribute__((noinline)) static uint32_t recurse(uint32_t level) {
    volatile uint32_t frame[64];
    frame[level % 64] = level;
    depth = level;
    return recurse(level + 1) + frame[(level + 1) % 64];
}

static int misbehave(struct tw_packet *packet, uint64_t *counters) {
    switch (*mode) {
    case 'l': /* a loop */
        for (;;) depth++;
    case 'w': /* a write outside of the memory */
        *(volatile uint8_t *)0xfffffff0u = 1;
        break;
    case 'r': /* a read behind the memory */
        depth = *(volatile uint32_t *)(__builtin_wasm_memory_size(0) * 65536u - 2);
        break;
    case 'g': /* growth up to the limit */
        while (__builtin_wasm_memory_grow(0, 1) != (size_t)-1) counters[PAGES]++;
        break;
    case 's': /* recursion */
        depth = recurse(1);
        break;
    case 'u': __builtin_trap();
    case 'd': depth = packet->length / (packet->verdict + (depth & 0)); break; /* a division by zero */
    case 'v': /* a verdict that does not exist */
        packet->verdict = 200;
        break;
    case 'p': /* a frame elsewhere */
        packet->frame = (uint8_t *)mode;
        packet->flags |= TW_REWRITTEN;
        break;
    case 'e': /* a frame that is too long */
        packet->length = 0x7fffffff;
        packet->flags |= TW_REWRITTEN;
        break;
    case 'm': /* a frame that is no longer IP */
        packet->frame[packet->network_offset] = 0;
        packet->flags |= TW_REWRITTEN;
        break;
    case 'f': /* a header field that no flag reports */
        packet->frame[packet->network_offset + 8] = 1;
        packet->frame[packet->payload_offset] = 'F';
        break;
    case 't': /* a VLAN tag */
        if (!tw_push_front(packet, 4)) return 1;
        for (int i = 0; i < 12; i++) packet->frame[i] = packet->frame[i + 4];
        memcpy(packet->frame + 12, "\x81\0\0\x07", 4);
        break;
    case 'c': return 9; /* an error */
    case 'n': packet->verdict = TW_DROP(REFUSED); break;
    }
    return 0;
}

static int process(void *instance, struct tw_batch *batch) {
    (void)instance;
    for (uint32_t i = 0; i < batch->count; i++) {
        struct tw_packet *packet = &batch->packets[i];
        struct flow *flow = packet->state;
        batch->counters[PACKETS]++;
        flow->packets++;
        if (packet->frame[packet->payload_offset] != *mode) continue;
        int code = misbehave(packet, batch->counters);
        if (code) return code;
    }
    return 0;
}

static void flows_ended(void *instance, const struct tw_ended_flow *flows, uint32_t count, uint64_t *counters) {
    (void)instance;
    for (uint32_t i = 0; i < count; i++) counters[ENDED] += ((const struct flow *)flows[i].state)->packets;
}

/* Misbehaves, too, on packets that the function lets pass. */
static void explain(const void *instance, const struct tw_packet *packet, struct tw_explanation *explanation) {
    (void)instance;
    tw_explain(explanation, packet->flags & TW_NEW_FLOW ? "new flow, packet " : "packet ");
    tw_explain_number(explanation, ((const struct flow *)packet->state)->packets);
    tw_explain(explanation, packet->verdict == TW_DROP(REFUSED) ? ", refused, from " : ", from ");
    tw_explain_number(explanation, tw_key_source_port(packet->key));
    if (packet->frame[packet->payload_offset] != *mode) return;
    switch (*mode) {
    case 'X': /* a loop */
        for (;;) depth++;
    case 'T': __builtin_trap();
    case 'O': /* a text without end, beyond its room */
        memset(explanation->text, 'o', 250);
        break;
    case 'B': /* no text */
        memcpy(explanation->text, "a\nb\xff", 5);
        break;
    case 'W': /* writes that must have no effect */
        packet->frame[packet->payload_offset] = '?';
        ((struct flow *)packet->state)->packets = 99;
        ((struct tw_packet *)packet)->verdict = TW_DROP(REFUSED);
        break;
    }
}

static const struct tw_drop_reason drop_reasons[] = {[REFUSED] = {.name = "refused"}};
static const char *const counters[] = {[PACKETS] = "packets", [PAGES] = "pages", [ENDED] = "packets-of-ended-flows"};

const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD,
    .name = "hostile",
    .state_bytes = sizeof(struct flow),
    .state_version = 1,
    .drop_reasons = drop_reasons,
    .drop_reason_count = 1,
    .counters = counters,
    .counter_count = 3,
    .configure = configure,
    .process = process,
    .flows_ended = flows_ended,
    .explain = explain,
};
