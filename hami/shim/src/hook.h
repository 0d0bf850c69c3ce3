/* What all groups of hooks share. A hook is exported under the driver's name and has the driver's signature. */
#ifndef HAMI_SHIM_HOOK_H
#define HAMI_SHIM_HOOK_H

#include "driver.h"
#include "state.h"

/* Declares "real", or tells the program that the driver lacks the function. */
#define FETCH_REAL(symbol)                                                                                             \
    __typeof__(&symbol) real = REAL(symbol);                                                                           \
    if (real == NULL) {                                                                                                \
        return CUDA_ERROR_NOT_SUPPORTED;                                                                               \
    }

/* Nothing to count: hand the call on; nothing may be granted: refuse. */
#define FORWARD_UNLESS_COUNTING(call)                                                                                  \
    if (!vgpu_enter()) {                                                                                               \
        return vgpu_closed() ? CUDA_ERROR_OUT_OF_MEMORY : (call);                                                      \
    }

/* For calls that grant nothing: without an account they go to the driver, whatever the policy. */
#define FORWARD_UNLESS_MEMBER(call)                                                                                    \
    if (!vgpu_enter()) {                                                                                               \
        return (call);                                                                                                 \
    }

/*
 * Take an object out of the book, let the driver free it, put it back if the driver refuses. "call" is the driver call.
 */
#define FREE_NOTED(kind, key, call)                                                                                    \
    do {                                                                                                               \
        book_entry_t entry;                                                                                            \
        return book_take(kind, key, &entry) ? vgpu_freed(&entry, call) : (call);                                       \
    } while (0)

/* End of a free whose entry was taken out: return its bytes, or put it back. Gives back "result". */
CUresult vgpu_freed(const book_entry_t *entry, CUresult result);

#endif
