/* SPDX-License-Identifier: Apache-2.0
 *
 * The small part of the C library that functions compiled to WebAssembly need. There is no other: a module imports
 * nothing. It also asserts the layout of tailwater_nf.h that the runtime expects in a module's memory.
 */
#include "tailwater_nf.h"
#include <stdlib.h>

#ifndef __wasm32__
#error "libc.c is for clang --target=wasm32"
#endif

_Static_assert(sizeof(struct tw_packet) == 56 && offsetof(struct tw_packet, arrival_ns) == 16, "struct tw_packet");
_Static_assert(offsetof(struct tw_packet, verdict) == 51, "struct tw_packet");
_Static_assert(sizeof(struct tw_batch) == 16 && sizeof(struct tw_flow_key) == 40, "struct tw_batch");
_Static_assert(sizeof(struct tw_function) == 72 && offsetof(struct tw_function, process) == 52, "struct tw_function");
_Static_assert(offsetof(struct tw_function, explain) == 68 && sizeof(struct tw_explanation) == 192, "explain");
_Static_assert(sizeof(struct tw_error) == 640 && sizeof(struct tw_drop_reason) == 8, "struct tw_error");
_Static_assert(sizeof(struct tw_ended_flow) == 8, "struct tw_ended_flow");

enum { PAGE = 65536 };

/* Each growth may lie behind memory that the runtime has added, so it is used by itself. */
void *malloc(size_t bytes) {
    static uintptr_t next, end;
    if (bytes > INT32_MAX) return NULL;
    bytes = (bytes + 15) & ~(size_t)15;
    if (bytes > end - next) {
        size_t pages = (bytes + PAGE - 1) / PAGE, before = __builtin_wasm_memory_grow(0, pages);
        if (before == SIZE_MAX) return NULL;
        if (before * PAGE != end) next = before * PAGE;
        end = (before + pages) * PAGE;
    }
    void *memory = (void *)next;
    next += bytes;
    return memory;
}

void *calloc(size_t count, size_t bytes) {
    /* Memory is zero, and is never given out again. */
    return bytes && count > SIZE_MAX / bytes ? NULL : malloc(count * bytes);
}

void free(void *memory) { (void)memory; }

_Noreturn void abort(void) { __builtin_trap(); }

/* With -mbulk-memory these are one instruction each. */
void *memcpy(void *restrict to, const void *restrict from, size_t bytes) { return __builtin_memcpy(to, from, bytes); }
void *memmove(void *to, const void *from, size_t bytes) { return __builtin_memmove(to, from, bytes); }
void *memset(void *to, int value, size_t bytes) { return __builtin_memset(to, value, bytes); }

int memcmp(const void *one, const void *other, size_t bytes) {
    const unsigned char *a = one, *b = other;
    for (; bytes; a++, b++, bytes--)
        if (*a != *b) return *a - *b;
    return 0;
}

size_t strlen(const char *text) {
    size_t length = 0;
    while (text[length]) length++;
    return length;
}

int strncmp(const char *one, const char *other, size_t bytes) {
    for (; bytes; one++, other++, bytes--)
        if (*one != *other || !*one) return (unsigned char)*one - (unsigned char)*other;
    return 0;
}

int strcmp(const char *one, const char *other) { return strncmp(one, other, SIZE_MAX); }

char *strncpy(char *restrict to, const char *restrict from, size_t bytes) {
    size_t i = 0;
    for (; i < bytes && from[i]; i++) to[i] = from[i];
    for (; i < bytes; i++) to[i] = 0;
    return to;
}

char *strchr(const char *text, int c) {
    for (; *text != (char)c; text++)
        if (!*text) return NULL;
    return (char *)text;
}

static int digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'z') return c - 'a' + 10;
    if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
    return 99;
}

unsigned long strtoul(const char *text, char **end, int base) {
    unsigned long number = 0;
    if (!base) base = 10;
    for (; digit(*text) < base; text++) number = number * (unsigned long)base + (unsigned long)digit(*text);
    if (end) *end = (char *)text;
    return number;
}

double strtod(const char *text, char **end) {
    int negative = *text == '-', exponent = 0, behind_point = 0;
    double number = 0;
    if (*text == '-' || *text == '+') text++;
    for (; digit(*text) < 10 || (*text == '.' && !behind_point); text++) {
        if (*text == '.') {
            behind_point = 1;
            continue;
        }
        number = number * 10 + digit(*text);
        exponent -= behind_point;
    }
    if (*text == 'e' || *text == 'E') {
        int down = text[1] == '-', given = 0;
        const char *digits = text + 1 + (text[1] == '-' || text[1] == '+');
        for (; digit(*digits) < 10; digits++)
            if (given < 1000) given = given * 10 + digit(*digits);
        exponent += down ? -given : given;
        text = digits;
    }
    for (; exponent > 0 && number <= 1e308; exponent--) number *= 10;
    for (; exponent < 0 && number != 0; exponent++) number /= 10;
    if (end) *end = (char *)text;
    return negative ? -number : number;
}
