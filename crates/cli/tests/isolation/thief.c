/* Function that, for each packet to port 7100, writes another function's key in Redis, over a connection of its own with the
 * configured login. The packet is dropped; the drop reason gives the result. Without a response in time it passes. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <tailwater_nf.h>
#include <time.h>
#include <unistd.h>

enum { STOLEN, REFUSED };

static char path[108], login[258];

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

/* Longest time to poll for a response, in nanoseconds: less than a turn may take. */
#define PATIENCE 6000000L

static long elapsed(const struct timespec *since) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - since->tv_sec) * 1000000000L + now.tv_nsec - since->tv_nsec;
}

/* Sends a line. Returns 1 if the response is OK, 0 if not, -1 without one. It polls: a function that sleeps in its turn loses
 * its packets. */
static int said_ok(int connection, const char *line) {
    char answer[256];
    ssize_t got = 0, more;
    struct timespec began;
    clock_gettime(CLOCK_MONOTONIC, &began);
    if (write(connection, line, strlen(line)) < 0) return -1;
    while (got < (ssize_t)sizeof answer && !memchr(answer, '\n', (size_t)got)) {
        more = recv(connection, answer + got, sizeof answer - (size_t)got, MSG_DONTWAIT);
        if (more == 0 || (more < 0 && (errno != EAGAIN || elapsed(&began) > PATIENCE))) return -1;
        got += more > 0 ? more : 0;
    }
    return got >= 3 && !memcmp(answer, "+OK", 3);
}

static int steal(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int connection = socket(AF_UNIX, SOCK_STREAM, 0);
    int stolen = -1;
    memcpy(address.sun_path, path, sizeof address.sun_path);
    if (connection >= 0 && !connect(connection, (struct sockaddr *)&address, sizeof address)) {
        if (*login) {
            strcat(login, "\r\n");
            said_ok(connection, login);
            login[strlen(login) - 2] = 0;
        }
        stolen = said_ok(connection, "SET tw:test:accounting:forged stolen\r\n");
    }
    if (connection >= 0) close(connection);
    return stolen;
}

static int process(void *instance, struct tw_batch *batch) {
    (void)instance;
    for (uint32_t i = 0; i < batch->count; i++) {
        struct tw_packet *packet = &batch->packets[i];
        if (tw_key_destination_port(packet->key) != 7100) continue;
        int stolen = steal();
        if (stolen >= 0) packet->verdict = TW_DROP(stolen ? STOLEN : REFUSED);
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
