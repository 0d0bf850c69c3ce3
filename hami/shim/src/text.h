/*
 * String comparison for what runs inside dlsym: a sanitizer's runtime calls dlsym to find the C library's strcmp, so we
 * must not need strcmp to answer.
 */
#ifndef HAMI_SHIM_TEXT_H
#define HAMI_SHIM_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* As strncmp with the length of the prefix. */
static inline int text_compare_prefix(const char *text, const char *prefix, size_t length) {
    for (size_t i = 0; i < length; i++) {
        int difference = (unsigned char)text[i] - (unsigned char)prefix[i];
        if (difference != 0 || text[i] == '\0') {
            return difference;
        }
    }
    return 0;
}

static inline size_t text_length(const char *text) {
    size_t length = 0;
    while (text[length] != '\0') {
        length++;
    }
    return length;
}

static inline int text_compare(const char *a, const char *b) {
    return text_compare_prefix(a, b, (size_t)-1);
}

static inline bool text_equal(const char *a, const char *b) {
    return text_compare(a, b) == 0;
}

static inline bool text_starts(const char *text, const char *prefix) {
    return text_compare_prefix(text, prefix, text_length(prefix)) == 0;
}

static inline bool text_upper(char c) {
    return c >= 'A' && c <= 'Z';
}

#endif
