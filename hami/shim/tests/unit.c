/*
 * Checks of the shim's parts that need no driver, and a small speaker for the pytest harness: it prints what the parser
 * and the compiler say, so that Python tables can compare.
 *
 *   unit-shim sizes TEXT...    one line per text: bytes, or "error: why"
 *   unit-shim layout           name=offset lines of the region
 *   unit-shim book             self-check of the hash table; exit status tells
 *   unit-shim limit FILE UUID CARD ORDINAL   limit of a card with this mounted file and our environment
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "book.h"
#include "config.h"
#include "region.h"

extern char **environ;

static int sizes(int count, char **texts) {
    for (int i = 0; i < count; i++) {
        uint64_t bytes = 0;
        const char *why = vgpu_parse_size(texts[i], &bytes);
        if (why != NULL) {
            printf("error: %s\n", why);
        } else {
            printf("%llu\n", (unsigned long long)bytes);
        }
    }
    return 0;
}

#define SHOW(type, field) printf(#type "." #field "=%zu\n", offsetof(vgpu_##type##_t, field))
#define SHOW_SIZE(type)   printf(#type "=%zu\n", sizeof(vgpu_##type##_t))

static int layout(void) {
    SHOW_SIZE(region);
    SHOW_SIZE(slot);
    SHOW_SIZE(usage);
    SHOW_SIZE(utilization);
    SHOW_SIZE(tail);
    SHOW(region, initialized);
    SHOW(region, major_version);
    SHOW(region, minor_version);
    SHOW(region, sm_init);
    SHOW(region, owner_pid);
    SHOW(region, semaphore);
    SHOW(region, device_count);
    SHOW(region, uuid);
    SHOW(region, memory_limit);
    SHOW(region, core_limit);
    SHOW(region, procs);
    SHOW(region, proc_count);
    SHOW(region, utilization_switch);
    SHOW(region, recent_kernel);
    SHOW(region, priority);
    SHOW(region, last_kernel_time);
    SHOW(region, post_init_semaphore);
    SHOW(region, tail);
    SHOW(slot, pid);
    SHOW(slot, host_pid);
    SHOW(slot, used);
    SHOW(slot, monitor_used);
    SHOW(slot, utilization);
    SHOW(slot, status);
    SHOW(slot, sequence);
    SHOW(usage, context);
    SHOW(usage, module);
    SHOW(usage, data);
    SHOW(usage, offset);
    SHOW(usage, total);
    SHOW(utilization, decoder);
    SHOW(utilization, encoder);
    SHOW(utilization, sm);
    SHOW(tail, magic);
    SHOW(tail, version);
    SHOW(tail, size);
    SHOW(tail, slot_high);
    SHOW(tail, joins);
    SHOW(tail, configured_limit);
    SHOW(tail, context_bytes);
    SHOW(tail, lock);
    SHOW(tail, core);
    SHOW(tail, slot_in_use);
    printf("lock_slot_base=%lld\n", (long long)VGPU_LOCK_SLOT_BASE);
    printf("lock_init=%lld\n", (long long)VGPU_LOCK_INIT);
    return 0;
}

static bool even(const book_entry_t *entry, void *count) {
    (void)count;
    return entry->key % 2 == 0;
}

static int dropped;
static void count_drop(const book_entry_t *entry) {
    dropped += entry->kind == BOOK_POINTER ? 1 : 0;
}

static int expect(bool condition, const char *what) {
    if (!condition) {
        printf("failed: %s\n", what);
    }
    return condition ? 0 : 1;
}

static int book(void) {
    enum { COUNT = 20000 };
    int failures = 0;
    book_entry_t entry;
    book_entry_t replaced;
    for (uint64_t key = 1; key <= COUNT; key++) {
        entry = (book_entry_t){.key = key, .value = key * 3, .kind = BOOK_POINTER};
        failures += expect(book_put(&entry, &replaced) && replaced.kind == 0, "put");
        entry.kind = BOOK_ARRAY;
        failures += expect(book_put(&entry, &replaced) && replaced.kind == 0, "put of another kind");
    }
    for (uint64_t key = 1; key <= COUNT; key += 3) {
        failures += expect(book_take(BOOK_POINTER, key, &entry) && entry.value == key * 3, "take");
        failures += expect(!book_take(BOOK_POINTER, key, &entry), "take twice");
    }
    for (uint64_t key = 1; key <= COUNT; key++) {
        bool there = key % 3 != 1;
        failures += expect(book_find(BOOK_POINTER, key, &entry) == there, "find after take");
        failures += expect(book_find(BOOK_ARRAY, key, &entry), "other kind untouched");
    }
    entry = (book_entry_t){.key = 2, .value = 7, .kind = BOOK_POINTER};
    failures += expect(book_put(&entry, &replaced) && replaced.value == 6, "replaced entry is reported");
    book_remove_if(even, count_drop, NULL);
    int expected = 0;
    for (uint64_t key = 2; key <= COUNT; key += 2) {
        expected += key % 3 != 1 ? 1 : 0;
        failures += expect(!book_find(BOOK_POINTER, key, &entry), "removed");
    }
    failures += expect(dropped == expected, "every match dropped once");
    for (uint64_t key = 3; key <= COUNT; key += 6) {
        failures += expect(book_find(BOOK_POINTER, key, &entry) && entry.value == key * 3, "odd ones stay");
    }
    return failures == 0 ? 0 : 1;
}

static int limit(char **arguments) {
    static char text[65536];
    FILE *file = fopen(arguments[0], "r");
    if (file != NULL) {
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        fclose(file);
    }
    static vgpu_config_t config;
    vgpu_config_build(&config, environ, file != NULL ? text : NULL);
    if (config.refused) {
        printf("refused: %s\n", config.reason);
        return 0;
    }
    int listed = vgpu_config_card(&config, arguments[1]);
    int card = listed >= 0 ? listed : atoi(arguments[2]);
    printf("%llu\n", (unsigned long long)vgpu_config_limit(&config, arguments[1], card, atoi(arguments[3])));
    return 0;
}

int main(int argc, char **argv) {
    const char *command = argc > 1 ? argv[1] : "";
    if (strcmp(command, "sizes") == 0) {
        return sizes(argc - 2, argv + 2);
    }
    if (strcmp(command, "layout") == 0) {
        return layout();
    }
    if (strcmp(command, "book") == 0) {
        return book();
    }
    if (strcmp(command, "limit") == 0 && argc == 6) {
        return limit(argv + 2);
    }
    fprintf(stderr, "usage: unit-shim sizes|layout|book|limit ...\n");
    return 2;
}
