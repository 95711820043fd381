/* C version of the functions in benches/library/mod.rs: forwards only with -DFORWARD, otherwise counts each flow's
 * packets and bytes. */
#include <tailwater_nf.h>

#ifndef FORWARD
struct flow {
    uint64_t packets;
    uint64_t bytes;
};
#endif

static int process(void *instance, struct tw_batch *batch) {
    (void)instance;
#ifdef FORWARD
    (void)batch;
#else
    for (uint32_t i = 0; i < batch->count; i++) {
        struct flow *flow = batch->packets[i].state;
        flow->packets++;
        flow->bytes += batch->packets[i].length;
    }
#endif
    return 0;
}

const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD,
    .name = "bench",
    .flags = TW_HEADERS_ONLY,
#ifndef FORWARD
    .state_bytes = sizeof(struct flow),
#endif
    .process = process,
};
