#include "parse.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

#include "config.h"

static const char *skip_blanks(const char *text) {
    while (isspace((unsigned char)*text)) {
        text++;
    }
    return text;
}

/* Power of two of a unit; -1 for text that is no unit. "*end" is left behind the unit. */
static int unit_shift(const char *text, const char **end) {
    static const char letters[] = "kmgt";
    const char *p = text;
    int shift = 0;
    if (*p != '\0') {
        const char *found = strchr(letters, tolower((unsigned char)*p));
        if (found != NULL) {
            shift = 10 * (int)(found - letters + 1);
            p++;
            if (tolower((unsigned char)*p) == 'i') {
                p++;
            }
        }
        if (tolower((unsigned char)*p) == 'b') {
            p++;
        }
    }
    *end = p;
    return shift;
}

const char *vgpu_parse_size(const char *text, uint64_t *bytes) {
    const char *p = skip_blanks(text);
    if (*p == '\0') {
        return "empty; give a size such as 3000m, or 0 for no limit";
    }
    if (!isdigit((unsigned char)*p)) {
        return "not a size; give digits and a unit, such as 3000m";
    }
    uint64_t whole = 0;
    for (; isdigit((unsigned char)*p); p++) {
        if (whole > (UINT64_MAX - 9) / 10) {
            return "too large";
        }
        whole = whole * 10 + (uint64_t)(*p - '0');
    }
    uint64_t part = 0;
    uint64_t scale = 1;
    bool decimal = *p == '.';
    if (decimal) {
        p++;
        if (!isdigit((unsigned char)*p)) {
            return "digits must follow the decimal point";
        }
        for (; isdigit((unsigned char)*p); p++) {
            if (scale < 1000000) { /* further digits are below one byte of any sensible size */
                part = part * 10 + (uint64_t)(*p - '0');
                scale *= 10;
            }
        }
    }
    const char *end;
    int shift = unit_shift(skip_blanks(p), &end);
    if (shift < 0 || *skip_blanks(end) != '\0') {
        return "unknown unit; use k, m, g or t, with or without i and b";
    }
    if (decimal && shift == 0) {
        return "a decimal number needs a unit";
    }
    if (shift > 0 && whole > (UINT64_MAX >> shift) - 1) {
        return "too large";
    }
    *bytes = (whole << shift) + (shift > 0 ? (part << shift) / scale : 0);
    return NULL;
}

const char *vgpu_parse_percent(const char *text, uint32_t *percent) {
    uint32_t value = 0;
    const char *p = skip_blanks(text);
    if (!isdigit((unsigned char)*p)) {
        return "not a percentage from 0 to 100";
    }
    for (; isdigit((unsigned char)*p); p++) {
        value = value * 10 + (uint32_t)(*p - '0');
        if (value > 100) {
            return "above 100 percent";
        }
    }
    if (*skip_blanks(p) != '\0') {
        return "not a percentage from 0 to 100";
    }
    *percent = value;
    return NULL;
}

bool vgpu_parse_true(const char *text) {
    static const char *const words[] = {"1", "t", "T", "true", "TRUE", "True"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(text, words[i]) == 0) {
            return true;
        }
    }
    return false;
}

int vgpu_parse_int(const char *text, int otherwise) {
    bool negative = *text == '-';
    const char *p = text + (negative ? 1 : 0);
    int value = 0;
    if (!isdigit((unsigned char)*p)) {
        return otherwise;
    }
    for (; isdigit((unsigned char)*p); p++) {
        if (value > 100000000) {
            return otherwise;
        }
        value = value * 10 + (*p - '0');
    }
    return *p != '\0' ? otherwise : negative ? -value : value;
}
