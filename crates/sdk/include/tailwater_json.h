/* SPDX-License-Identifier: Apache-2.0
 *
 * tailwater_json.h: reader for the JSON passed to `configure`. It reads only that text, which is well-formed and ends
 * with a zero byte. Any other JSON library can be used instead.
 *
 * A value is a pointer to its first character. Functions accept NULL for a missing field, and return it for one.
 */
#ifndef TAILWATER_JSON_H
#define TAILWATER_JSON_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline const char *tw_json_space(const char *at) {
    while (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r') at++;
    return at;
}

/* Returns the position after a string; `at` is its opening quote. */
static inline const char *tw_json_behind_string(const char *at) {
    for (at++; *at && *at != '"'; at++)
        if (*at == '\\' && at[1]) at++;
    return *at ? at + 1 : at;
}

/* Returns the position after any value. */
static inline const char *tw_json_behind(const char *at) {
    at = tw_json_space(at);
    if (*at == '"') return tw_json_behind_string(at);
    int depth = 0;
    while (*at) {
        if (*at == '"') {
            at = tw_json_behind_string(at);
            continue;
        }
        if (*at == '[' || *at == '{') depth++;
        if (*at == ']' || *at == '}') {
            if (depth == 0) break;
            if (--depth == 0) return at + 1;
        }
        if (*at == ',' && depth == 0) break;
        at++;
    }
    return at;
}

/* Copies a string to `text`, zero-terminated, and returns its length without the zero byte. Returns -1 if the value is
 * not a string, or does not fit into `room` bytes. Only \u escapes of ASCII characters are supported. */
static inline int tw_json_string(const char *value, char *text, size_t room) {
    if (!value || *value != '"') return -1;
    size_t length = 0;
    for (const char *at = value + 1; *at && *at != '"'; at++) {
        char c = *at;
        if (c == '\\') {
            switch (*++at) {
            case 'n': c = '\n'; break;
            case 't': c = '\t'; break;
            case 'r': c = '\r'; break;
            case 'b': c = '\b'; break;
            case 'f': c = '\f'; break;
            case 'u': {
                char digits[5] = {0};
                for (int i = 0; i < 4 && at[1]; i++) digits[i] = *++at;
                unsigned long code = strtoul(digits, NULL, 16);
                if (code > 127) return -1;
                c = (char)code;
                break;
            }
            default: c = *at;
            }
        }
        if (length + 1 >= room) return -1;
        text[length++] = c;
    }
    if (room == 0) return -1;
    text[length] = 0;
    return (int)length;
}

/* Returns a list's first item, or NULL if the list is empty. */
static inline const char *tw_json_first(const char *list) {
    if (!list || *list != '[') return NULL;
    list = tw_json_space(list + 1);
    return *list == ']' || !*list ? NULL : list;
}

/* Returns the next item, or NULL after the last. */
static inline const char *tw_json_next(const char *item) {
    if (!item) return NULL;
    item = tw_json_space(tw_json_behind(item));
    return *item == ',' ? tw_json_space(item + 1) : NULL;
}

/* Iterates over the fields of an object, starting with *at = object. Copies a field's name to `name`, which has `room`
 * bytes, returns its value and moves *at to the next field. Returns NULL after the last field. */
static inline const char *tw_json_each(const char **at, char *name, size_t room) {
    const char *key = tw_json_space(*at);
    if (*key != '{' && *key != ',') return NULL;
    key = tw_json_space(key + 1);
    if (*key != '"') return NULL;
    if (tw_json_string(key, name, room) < 0) strncpy(name, "(a long name)", room - 1), name[room - 1] = 0;
    const char *value = tw_json_space(tw_json_behind_string(key));
    if (*value == ':') value++;
    value = tw_json_space(value);
    *at = tw_json_space(tw_json_behind(value));
    return value;
}

/* Returns the value of a field of an object, or NULL if there is no such field. */
static inline const char *tw_json_field(const char *object, const char *field) {
    char name[128];
    for (const char *value; object && (value = tw_json_each(&object, name, sizeof name));)
        if (strcmp(name, field) == 0) return value;
    return NULL;
}

/* Reads a non-negative integer. Returns 1, or 0 if the value is not one. */
static inline int tw_json_uint(const char *value, uint64_t *number) {
    if (!value || *value < '0' || *value > '9') return 0;
    uint64_t whole = 0;
    for (; *value >= '0' && *value <= '9'; value++) {
        uint64_t digit = (uint64_t)(*value - '0');
        if (whole > (UINT64_MAX - digit) / 10) return 0;
        whole = whole * 10 + digit;
    }
    if (*value == '.' || *value == 'e' || *value == 'E') return 0;
    *number = whole;
    return 1;
}

/* Reads a number. Returns 1, or 0 if the value is not one. */
static inline int tw_json_number(const char *value, double *number) {
    if (!value || !(*value == '-' || (*value >= '0' && *value <= '9'))) return 0;
    *number = strtod(value, NULL);
    return 1;
}

/* Reads a boolean. Returns 1, or 0 if the value is not one. */
static inline int tw_json_bool(const char *value, int *truth) {
    if (!value || (strncmp(value, "true", 4) != 0 && strncmp(value, "false", 5) != 0)) return 0;
    *truth = *value == 't';
    return 1;
}

#endif
