/* The ways from a program to a driver symbol. */
#include "symbols.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum way current_way;
static void *library;
static struct {
    const char *symbol;
    void *address;
} cache[1024];

typedef void *(*dlsym_t)(void *, const char *);
typedef int (*proc1_t)(const char *, void **, int, uint64_t);
typedef int (*proc2_t)(const char *, void **, int, uint64_t, int *);

static const struct fake_export *entry_of(const char *symbol) {
    for (size_t i = 0; i < symbol_count; i++) {
        if (strcmp(symbols[i].symbol, symbol) == 0) {
            return &symbols[i];
        }
    }
    fprintf(stderr, "no such name: %s\n", symbol);
    exit(3);
}

static void *driver(void) {
    if (library == NULL) {
        library = dlopen("libcuda.so.1", RTLD_NOW);
    }
    return library;
}

/* dlsym itself found by dlsym, as some loaders of plug-ins do. */
static void *by_nested(const char *symbol) {
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    dlsym_t again = (dlsym_t)dlsym(libc, "dlsym");
    return again(driver(), symbol);
}

static void *by_proc1(const struct fake_export *entry) {
    void *address = NULL;
    proc1_t ask = (proc1_t)dlsym(driver(), "cuGetProcAddress");
    int result = ask(entry->base, &address, entry->since, entry->per_thread != 0 ? 2 : 0);
    return result == 0 ? address : NULL;
}

static void *by_proc2(const struct fake_export *entry) {
    void *address = NULL;
    int status = -1;
    proc2_t ask = (proc2_t)dlsym(driver(), "cuGetProcAddress_v2");
    if (ask == NULL) {
        return NULL;
    }
    int result = ask(entry->base, &address, entry->since, entry->per_thread != 0 ? 2 : 0, &status);
    return result == 0 && status == 0 ? address : NULL;
}

static void *look_up(const char *symbol) {
    const struct fake_export *entry = entry_of(symbol);
    switch (current_way) {
    case WAY_LINK:
        return (void *)entry->address;
    case WAY_DLSYM:
        return dlsym(driver(), symbol);
    case WAY_DEFAULT:
        return dlsym(RTLD_DEFAULT, symbol);
    case WAY_NEXT:
        return dlsym(RTLD_NEXT, symbol);
    case WAY_DLVSYM:
        return dlvsym(driver(), symbol, "libcuda.so.1");
    case WAY_NESTED:
        return by_nested(symbol);
    case WAY_PROC1:
        return by_proc1(entry);
    default:
        return by_proc2(entry);
    }
}

void use_way(enum way way) {
    current_way = way;
    memset(cache, 0, sizeof cache);
}

void *find(const char *symbol) {
    size_t i = 0;
    while (cache[i].symbol != NULL && strcmp(cache[i].symbol, symbol) != 0) {
        i++;
    }
    if (cache[i].symbol == NULL) {
        cache[i].symbol = symbol;
        cache[i].address = look_up(symbol);
    }
    return cache[i].address;
}

const char *way_name(enum way way) {
    static const char *const names[] = {"link", "dlsym", "default", "next", "dlvsym", "nested", "proc1", "proc2"};
    return names[way];
}
