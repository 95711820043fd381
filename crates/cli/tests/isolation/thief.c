/* Function that, at its first packet to port 7100, writes another function's key in Redis, over a connection of its own with the
 * configured login. Such packets are dropped once Redis has responded; the drop reason gives the result. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <tailwater_nf.h>
#include <unistd.h>

enum { STOLEN, REFUSED };

static char path[108], login[258];

/* Open connection to Redis, or -1. */
static int connection = -1;

/* Copies the string field of this name from a configuration. */
static void text(const char *config, size_t bytes, const char *name, char *to, size_t room) {
    const char *at = memmem(config, bytes, name, strlen(name));
    const char *from = at ? memchr(at + strlen(name) + 1, '"', (size_t)(config + bytes - at) - strlen(name) - 1) : NULL;
    const char *end = from ? memchr(from + 1, '"', (size_t)(config + bytes - from) - 1) : NULL;
    if (end && (size_t)(end - from) <= room) memcpy(to, from + 1, (size_t)(end - from) - 1);
}

static int configure(const char *config, size_t bytes, void **shared, struct tw_error *error) {
    (void)shared, (void)error;
    text(config, bytes, "socket", path, sizeof path);
    text(config, bytes, "login", login, sizeof login - 2);
    return 0;
}

/* Sends the commands. Does not wait for Redis: a function that sleeps in its turn loses its packets, and one that polls for too
 * long, too. */
static void steal(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char lines[sizeof login + 64];
    memcpy(address.sun_path, path, sizeof address.sun_path);
    int opened = socket(AF_UNIX, SOCK_STREAM, 0);
    if (opened < 0 || connect(opened, (struct sockaddr *)&address, sizeof address)) return;
    int bytes = snprintf(lines, sizeof lines, "%s%sSET tw:test:accounting:forged stolen\r\n", login, *login ? "\r\n" : "");
    if (write(opened, lines, (size_t)bytes) == bytes) connection = opened;
}

/* Returns 1 if the response to the last command is OK, 0 if not, -1 if it has not arrived. */
static int stolen(void) {
    static char answers[512];
    static size_t got;
    ssize_t more = recv(connection, answers + got, sizeof answers - got, MSG_DONTWAIT);
    got += more > 0 ? (size_t)more : 0;
    const char *last = answers;
    if (*login) {
        const char *end = memchr(answers, '\n', got);
        if (!end) return -1;
        last = end + 1;
    }
    size_t left = got - (size_t)(last - answers);
    return memchr(last, '\n', left) ? left >= 3 && !memcmp(last, "+OK", 3) : -1;
}

static int process(void *instance, struct tw_batch *batch) {
    (void)instance;
    for (uint32_t i = 0; i < batch->count; i++) {
        struct tw_packet *packet = &batch->packets[i];
        if (tw_key_destination_port(packet->key) != 7100) continue;
        if (connection < 0) steal();
        int outcome = connection < 0 ? -1 : stolen();
        if (outcome >= 0) packet->verdict = TW_DROP(outcome ? STOLEN : REFUSED);
    }
    return 0;
}

static const struct tw_drop_reason reasons[] = {{"stolen", 0}, {"refused", 0}};

const struct tw_function tailwater_function = {
    TW_FUNCTION_HEAD,
    .name = "thief",
    .drop_reasons = reasons,
    .drop_reason_count = 2,
    .configure = configure,
    .process = process,
};
