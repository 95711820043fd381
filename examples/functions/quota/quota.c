/* Limits each flow to a number of bytes. If the chain has a `state`, the bytes spent move with the flow to another
 * server.
 *
 *     - library:
 *         file: functions/quota/quota.so
 *         config: {bytes: 1000000}
 */
#include <stdlib.h>
#include <tailwater_json.h>
#include <tailwater_nf.h>

struct quota {
    uint64_t bytes;
};

/* State of a flow. It means the same on every server, and contains no times. */
struct account {
    uint64_t spent;
};

enum { OVER_QUOTA };
enum { RETURNED_FLOWS };

static int configure(const char *config, size_t bytes, void **shared, struct tw_error *error) {
    char name[32];
    uint64_t limit = 0;
    (void)bytes;
    for (const char *at = config; tw_json_each(&at, name, sizeof name);)
        if (strcmp(name, "bytes") != 0) return tw_refuse(error, name, "expected the field bytes");
    if (!tw_json_uint(tw_json_field(config, "bytes"), &limit) || limit < 1)
        return tw_refuse(error, "bytes", "expected bytes, a whole number from 1");
    struct quota *quota = malloc(sizeof *quota);
    if (!quota) return tw_refuse(error, "", "there is no memory");
    quota->bytes = limit;
    *shared = quota;
    return 0;
}

static int process(void *instance, struct tw_batch *batch) {
    const struct quota *quota = instance;
    for (uint32_t i = 0; i < batch->count; i++) {
        struct tw_packet *packet = &batch->packets[i];
        const struct account *account = tw_read(packet);
        /* New in this instance, but known in the store. */
        if (packet->flags & TW_NEW_FLOW && account->spent > 0) batch->counters[RETURNED_FLOWS]++;
        /* Another instance may have had a larger quota. */
        if (account->spent > quota->bytes || packet->length > quota->bytes - account->spent) {
            packet->verdict = TW_DROP(OVER_QUOTA);
            continue;
        }
        ((struct account *)tw_update(packet))->spent += packet->length;
    }
    return 0;
}

static const struct tw_drop_reason drop_reasons[] = {[OVER_QUOTA] = {.name = "over-quota"}};
static const char *const counters[] = {[RETURNED_FLOWS] = "returned-flows"};

const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD,
    .name = "quota",
    .flags = TW_HEADERS_ONLY,
    .state_bytes = sizeof(struct account),
    .state_version = 1,
    .drop_reasons = drop_reasons,
    .drop_reason_count = 1,
    .counters = counters,
    .counter_count = 1,
    .configure = configure,
    .release = free,
    .process = process,
};
