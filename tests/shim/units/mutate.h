/* Random damage for the fuzz targets: cheap, seeded, the same on every machine. */
#ifndef SHIM_MUTATE_H
#define SHIM_MUTATE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("line %d: %s (round %llu)\n", __LINE__, #condition, (unsigned long long)rounds);                    \
            fflush(stdout);                                                                                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

static uint64_t rounds;
static uint64_t random_state;

static inline uint32_t below(uint32_t end) {
    random_state = random_state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)((random_state >> 33) % end);
}

static inline time_t now_s(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec;
}

/* A number that readers stumble over, or any. */
static inline uint64_t odd_number(void) {
    static const uint64_t odd[] = {0,
                                   1,
                                   2,
                                   15,
                                   16,
                                   17,
                                   1023,
                                   1024,
                                   1025,
                                   0x7fffffff,
                                   0x80000000,
                                   0xffffffff,
                                   0x100000000ULL,
                                   1ULL << 40,
                                   1ULL << 63,
                                   UINT64_MAX,
                                   UINT64_MAX - 1};
    uint32_t chosen = below(2 * sizeof odd / sizeof *odd);
    return chosen < sizeof odd / sizeof *odd ? odd[chosen] : ((uint64_t)below(UINT32_MAX) << 32) | below(UINT32_MAX);
}

/* Changes a text in place: letters replaced, taken out, doubled, pieces of the words put in. "room" counts the NUL. */
static inline void damage_text(char *text, size_t room, const char *const *words, uint32_t word_count) {
    for (uint32_t n = below(6); n > 0; n--) {
        size_t length = strlen(text);
        size_t at = below((uint32_t)length + 1);
        const char *word = words[below(word_count)];
        size_t size = strlen(word);
        switch (below(4)) {
        case 0:
            if (at < length) {
                text[at] = (char)(1 + below(255));
            }
            break;
        case 1:
            if (at < length) {
                size_t gone = 1 + below((uint32_t)(length - at));
                memmove(text + at, text + at + gone, length - at - gone + 1);
            }
            break;
        default:
            if (length + size + 1 <= room) {
                memmove(text + at + size, text + at, length - at + 1);
                memcpy(text + at, word, size);
            }
        }
    }
}

#endif
