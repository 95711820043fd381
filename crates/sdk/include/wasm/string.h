/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of <string.h> that functions compiled to WebAssembly have; libc.c defines it.
 */
#ifndef TAILWATER_WASM_STRING_H
#define TAILWATER_WASM_STRING_H

#include <stddef.h>

void *memcpy(void *restrict to, const void *restrict from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *to, int value, size_t bytes);
int memcmp(const void *one, const void *other, size_t bytes);
size_t strlen(const char *text);
int strcmp(const char *one, const char *other);
int strncmp(const char *one, const char *other, size_t bytes);
char *strncpy(char *restrict to, const char *restrict from, size_t bytes);
char *strchr(const char *text, int c);

#endif
