/*
 * What this process holds: which driver object stands for how many bytes on which card.
 *
 * Sharded hash table with open addressing; cost does not grow with the number of live blocks. A free takes its entry
 * out before it calls the driver and puts it back if the driver refuses: the other way round, another thread could be
 * given the same address in between and lose its entry (spec/shim.md 12).
 */
#ifndef HAMI_SHIM_BOOK_H
#define HAMI_SHIM_BOOK_H

#include <stdbool.h>
#include <stdint.h>

/* Keys of different kinds may have equal numbers. */
typedef enum {
    BOOK_POINTER = 1, /* any device pointer that cuMemFree or cuMemFreeAsync takes */
    BOOK_ARRAY,
    BOOK_MIPMAP,
    BOOK_EXTERNAL,
    BOOK_CONTEXT,
    BOOK_GREEN,
    BOOK_MODULE,
    BOOK_LIBRARY,
    BOOK_VMM_HANDLE,    /* value: pointer to its record in hook_vmm.c */
    BOOK_VMM_MAPPING,   /* value: pointer to its record in hook_vmm.c */
    BOOK_GRAPH_POINTER, /* value: bytes; pool: the graph; use: the card (the graph's record is charged, not this) */
    BOOK_POOL           /* only its card is of interest */
} book_kind_t;

typedef struct {
    uint64_t key;
    uint64_t value;   /* bytes, or a record */
    uint64_t context; /* dies with this context; 0: outlives contexts */
    uint64_t pool;    /* came from this pool; 0: from none, or from the card's current one */
    uint32_t kind;    /* 0 marks an empty place */
    int16_t card;
    uint16_t use;
} book_entry_t;

/*
 * Add an entry; false when there is no memory for it. An entry of the same key that was still there (the driver gave
 * the address out again, so its object is gone) is copied to "replaced"; replaced->kind is 0 otherwise.
 */
bool book_put(const book_entry_t *entry, book_entry_t *replaced);

/* Remove an entry and return it; false when unknown. */
bool book_take(book_kind_t kind, uint64_t key, book_entry_t *out);

/* Copy an entry without removing it. */
bool book_find(book_kind_t kind, uint64_t key, book_entry_t *out);

/* First entry that "matches", in no order. Looks at all: for rare calls. */
bool book_search(bool (*matches)(const book_entry_t *, void *), void *argument, book_entry_t *out);

/* Remove every entry that "matches" and hand it to "drop". */
void book_remove_if(bool (*matches)(const book_entry_t *, void *), void (*drop)(const book_entry_t *), void *argument);

/* Forget everything, also locks that a thread of the parent held: for fork children. */
void book_reset(void);

#endif
