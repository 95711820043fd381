/* A configured number of longest-prefix matches per packet, each for an address that depends on the previous result.
 * Quadrant's benchmark function does 200. Two levels: 16 bits, and 8 more for longer prefixes. */
#include <stdlib.h>
#include <tailwater_json.h>
#include <tailwater_nf.h>

struct table {
    uint64_t lookups;
    uint16_t first[1 << 16];
    uint8_t second[256][256];
};

static int configure(const char *config, size_t bytes, void **shared, struct tw_error *error) {
    struct table *table = calloc(1, sizeof *table);
    uint32_t random = 1;
    (void)bytes;
    if (!table) return tw_refuse(error, "", "expected more memory");
    if (!tw_json_uint(tw_json_field(config, "lookups"), &table->lookups)) {
        free(table);
        return tw_refuse(error, "lookups", "expected how many look-ups a packet takes");
    }
    for (int i = 0; i < 1 << 16; i++) {
        random = random * 1664525 + 1013904223;
        /* One entry in eight refers to longer prefixes. */
        table->first[i] = (uint16_t)(random >> 29 ? random >> 24 : 0x8000 | (random >> 16 & 0xff));
    }
    for (int i = 0; i < 1 << 16; i++) {
        random = random * 1664525 + 1013904223;
        table->second[i >> 8][i & 0xff] = (uint8_t)(random >> 24);
    }
    *shared = table;
    return 0;
}

static volatile uint32_t result;

static int process(void *instance, struct tw_batch *batch) {
    const struct table *table = instance;
    for (uint32_t i = 0; i < batch->count; i++) {
        uint32_t address = tw_key_destination_v4(batch->packets[i].key), hop = 0;
        for (uint64_t n = 0; n < table->lookups; n++) {
            hop = table->first[address >> 16];
            if (hop & 0x8000) hop = table->second[hop & 0xff][address >> 8 & 0xff];
            address = (address + hop) * 2654435761u;
        }
        /* Does not affect the verdict, but keeps the compiler from removing the look-ups. */
        result = hop;
    }
    return 0;
}

static const struct tw_drop_reason reasons[] = {{"no-route", 0}};

const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD,
    .name = "lookups",
    .flags = TW_HEADERS_ONLY,
    .drop_reasons = reasons,
    .drop_reason_count = 1,
    .configure = configure,
    .release = free,
    .process = process,
};
