/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of <stdlib.h> that functions compiled to WebAssembly have; libc.c defines it.
 */
#ifndef TAILWATER_WASM_STDLIB_H
#define TAILWATER_WASM_STDLIB_H

#include <stddef.h>

/* Memory from `malloc` and `calloc`, aligned to 16, is freed with the instance: `free` has no effect. */
void *malloc(size_t bytes);
void *calloc(size_t count, size_t bytes);
void free(void *memory);
unsigned long strtoul(const char *text, char **end, int base);
/* Reads a decimal number, with an exponent; correct to 15 digits. */
double strtod(const char *text, char **end);
_Noreturn void abort(void);

#endif
