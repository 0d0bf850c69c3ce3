#include "book.h"

#include <stdlib.h>
#include <string.h>

#include "lock.h"

#define SHARDS         64
#define FIRST_CAPACITY 64

typedef struct {
    local_lock_t lock;
    uint32_t capacity; /* power of two, or 0 before the first entry */
    uint32_t used;
    book_entry_t *places;
} __attribute__((aligned(64))) shard_t;

static shard_t shards[SHARDS];

static uint64_t mix(book_kind_t kind, uint64_t key) {
    uint64_t x = (key ^ ((uint64_t)kind << 56)) * 0x9e3779b97f4a7c15ULL;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ULL;
    return x ^ (x >> 32);
}

static shard_t *shard_of(uint64_t hash) {
    return &shards[hash >> 58];
}

static uint32_t find_place(const shard_t *shard, uint64_t hash, book_kind_t kind, uint64_t key) {
    uint32_t mask = shard->capacity - 1;
    uint32_t i = (uint32_t)hash & mask;
    while (shard->places[i].kind != 0 && (shard->places[i].key != key || shard->places[i].kind != (uint32_t)kind)) {
        i = (i + 1) & mask;
    }
    return i;
}

static bool grow(shard_t *shard) {
    uint32_t capacity = shard->capacity == 0 ? FIRST_CAPACITY : shard->capacity * 2;
    book_entry_t *places = calloc(capacity, sizeof *places);
    if (places == NULL) {
        return false;
    }
    shard_t bigger = {.capacity = capacity, .places = places};
    for (uint32_t i = 0; i < shard->capacity; i++) {
        const book_entry_t *entry = &shard->places[i];
        if (entry->kind != 0) {
            places[find_place(&bigger, mix(entry->kind, entry->key), entry->kind, entry->key)] = *entry;
        }
    }
    free(shard->places);
    shard->places = places;
    shard->capacity = capacity;
    return true;
}

bool book_put(const book_entry_t *entry, book_entry_t *replaced) {
    replaced->kind = 0;
    uint64_t hash = mix(entry->kind, entry->key);
    shard_t *shard = shard_of(hash);
    local_lock(&shard->lock);
    bool room = (uint64_t)shard->used * 4 < (uint64_t)shard->capacity * 3 || grow(shard);
    if (room) {
        uint32_t i = find_place(shard, hash, entry->kind, entry->key);
        if (shard->places[i].kind == 0) {
            shard->used++;
        } else {
            *replaced = shard->places[i];
        }
        shard->places[i] = *entry;
    }
    local_unlock(&shard->lock);
    return room;
}

/* Close the gap at i: move back each later entry of the run that may stand there. */
static void erase(shard_t *shard, uint32_t i) {
    uint32_t mask = shard->capacity - 1;
    uint32_t j = i;
    for (;;) {
        j = (j + 1) & mask;
        const book_entry_t *entry = &shard->places[j];
        if (entry->kind == 0) {
            break;
        }
        uint32_t home = (uint32_t)mix(entry->kind, entry->key) & mask;
        if (((j - home) & mask) >= ((j - i) & mask)) {
            shard->places[i] = *entry;
            i = j;
        }
    }
    shard->places[i].kind = 0;
    shard->used--;
}

static bool look_up(book_kind_t kind, uint64_t key, book_entry_t *out, bool remove) {
    uint64_t hash = mix(kind, key);
    shard_t *shard = shard_of(hash);
    bool found = false;
    local_lock(&shard->lock);
    if (shard->capacity != 0) {
        uint32_t i = find_place(shard, hash, kind, key);
        found = shard->places[i].kind != 0;
        if (found) {
            *out = shard->places[i];
            if (remove) {
                erase(shard, i);
            }
        }
    }
    local_unlock(&shard->lock);
    return found;
}

bool book_take(book_kind_t kind, uint64_t key, book_entry_t *out) {
    return look_up(kind, key, out, true);
}

bool book_find(book_kind_t kind, uint64_t key, book_entry_t *out) {
    return look_up(kind, key, out, false);
}

bool book_search(bool (*matches)(const book_entry_t *, void *), void *argument, book_entry_t *out) {
    bool found = false;
    for (int s = 0; s < SHARDS && !found; s++) {
        shard_t *shard = &shards[s];
        local_lock(&shard->lock);
        for (uint32_t i = 0; i < shard->capacity && !found; i++) {
            found = shard->places[i].kind != 0 && matches(&shard->places[i], argument);
            if (found) {
                *out = shard->places[i];
            }
        }
        local_unlock(&shard->lock);
    }
    return found;
}

void book_remove_if(bool (*matches)(const book_entry_t *, void *), void (*drop)(const book_entry_t *), void *argument) {
    for (int s = 0; s < SHARDS; s++) {
        shard_t *shard = &shards[s];
        local_lock(&shard->lock);
        for (uint32_t i = 0; i < shard->capacity;) {
            if (shard->places[i].kind != 0 && matches(&shard->places[i], argument)) {
                book_entry_t gone = shard->places[i];
                erase(shard, i); /* may move another entry to i: look at i again */
                drop(&gone);
            } else {
                i++;
            }
        }
        local_unlock(&shard->lock);
    }
}

void book_reset(void) {
    for (int s = 0; s < SHARDS; s++) {
        /* The places leak once: a fork child cannot know whether a lost thread was about to replace them. */
        memset(&shards[s], 0, sizeof shards[s]);
    }
}
