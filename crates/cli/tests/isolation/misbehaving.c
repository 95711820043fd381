/* Function that counts packets and flows, and fails in the way that a packet's destination port selects:
 *   7000  drop it          7001  crash                  7002  exit
 *   7003  never return     7004  sleep for ever         7005  stop itself
 *   7006  invalid response: frames exceed their buffers
 *   7007  invalid response: all packets are missing, without a drop
 *   7008  invalid response: done, without verdicts on this round's packets
 *   7009  overwrite the packet memory
 *   7010  invalid response: more packets than there were
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <tailwater_nf.h>
#include <unistd.h>

struct seen {
    uint64_t packets;
};

/* Returns the first mapping of a file of this name that is writable (`write` is 'w') or not ('-'). */
static volatile uint64_t *mapped(const char *name, char write, size_t *bytes) {
    char line[512], mode[8];
    unsigned long from, to;
    volatile uint64_t *found = NULL;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && !found && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) == 3 && mode[1] == write && strstr(line, name)) {
            found = (volatile uint64_t *)from;
            *bytes = to - from;
        }
    if (maps) fclose(maps);
    return found;
}

/* Word offsets of the verdicts in a response area; see the isolation crate's layout. */
enum { SAID = 80, LEFT = 81, MOVED = 85, PLACES = 96, BATCH = 256 };
/* All of the first 64 packets that exist. */
enum { ALL = 1 };

/* Writes the response of this round instead of the function: the masks `left` and `moved` of the first 64 packets, and
 * `word` as the verdict on each. Then yields to the worker. */
static _Noreturn void lie(uint64_t left, uint64_t moved, uint64_t word) {
    size_t bytes = 0;
    volatile uint64_t *slate = mapped("tailwater-slate", 'w', &bytes);
    volatile uint64_t *board = mapped("tailwater-board", '-', &bytes);
    uint64_t round = board[0], count = board[1], there = count < 64 ? (1ull << count) - 1 : ~0ull;
    for (int i = 0; i < BATCH; i++) slate[PLACES + i] = word | round << 56;
    slate[LEFT] = left == ALL ? there : left;
    slate[MOVED] = moved & slate[LEFT];
    slate[SAID] = round;
    slate[0] = round;
    sched_yield();
    for (;;) pause();
}

/* Reports this round as done, without verdicts on its packets. */
static _Noreturn void say_nothing(void) {
    size_t bytes = 0;
    uint64_t round = mapped("tailwater-board", '-', &bytes)[0];
    mapped("tailwater-slate", 'w', &bytes)[0] = round;
    sched_yield();
    for (;;) pause();
}

static int process(void *instance, struct tw_batch *batch) {
    size_t bytes = 0;
    (void)instance;
    for (uint32_t i = 0; i < batch->count; i++) {
        struct tw_packet *packet = &batch->packets[i];
        struct seen *seen = packet->state;
        batch->counters[0]++;
        batch->counters[1] += packet->flags & TW_NEW_FLOW;
        seen->packets++;
        switch (tw_key_destination_port(packet->key)) {
        case 7000: packet->verdict = TW_DROP(0); break;
        case 7001: abort();
        case 7002: _exit(7);
        case 7003: for (;;) __asm__ volatile("");
        case 7004: pause(); break;
        case 7005: raise(SIGSTOP); break;
        case 7006: lie(ALL, ~0ull, 1 | 128ull << 16 | 65000ull << 32);
        case 7007: lie(0, 0, 0);
        case 7008: say_nothing();
        case 7010: lie(~0ull, 0, 0);
        case 7009: {
            volatile uint64_t *packets = mapped("tailwater-packets", 'w', &bytes);
            for (size_t i = 0; i < bytes / 8; i++) packets[i] = 0xa5a5a5a5a5a5a5a5ull;
        }
        }
    }
    return 0;
}

static void flows_ended(void *instance, const struct tw_ended_flow *flows, uint32_t count, uint64_t *counters) {
    (void)instance;
    for (uint32_t i = 0; i < count; i++) counters[2] += ((const struct seen *)flows[i].state)->packets;
}

static const struct tw_drop_reason reasons[] = {{"asked-for", 0}};
static const char *const counters[] = {"packets", "new-flows", "ended-packets"};

const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD,
    .name = "misbehaving",
    .state_bytes = sizeof(struct seen),
    .drop_reasons = reasons,
    .drop_reason_count = 1,
    .counters = counters,
    .counter_count = 3,
    .process = process,
    .flows_ended = flows_ended,
};
