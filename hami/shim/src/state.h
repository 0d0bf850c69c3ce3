/*
 * From a CUDA call to the account: is there something to do, on which card, and is this process a member yet.
 *
 * Every hook starts with vgpu_enter(): false means "forward untouched". Joining happens at the first call that needs
 * it, also in fork children, whose inherited book is dropped first because the memory in it is the parent's.
 */
#ifndef HAMI_SHIM_STATE_H
#define HAMI_SHIM_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "account.h"
#include "book.h"
#include "cuda_min.h"

#define VGPU_CARD_NONE    (-1) /* forward: not a card we know (no current context, host memory) */
#define VGPU_CARD_REFUSED (-2) /* a card that has a limit and no place in the region: nothing may be granted */

/* Is there anything to count? Joins if needed. */
bool vgpu_enter(void);

/* Nothing may be granted: unusable region, refused configuration, or a process that is exiting. */
bool vgpu_closed(void);

/* Place in the region of a CUDA device. */
int vgpu_card_of(CUdevice device);

/* CUDA device of a place in the region; -1 unknown. */
CUdevice vgpu_device_of(int card);

/* Card of the calling thread's current context; the context too where the pointer is not NULL. */
int vgpu_current_card(uint64_t *context);

/* Card that a stream belongs to. */
int vgpu_stream_card(CUstream stream, uint64_t *context);

/* Contexts may be reused under the same address after this; call it when one is destroyed. */
void vgpu_forget_contexts(void);

/* As vgpu_reserve, without having idle memory of pools and graphs given back first: allowed during stream capture. */
CUresult vgpu_reserve_only(int card, uint64_t bytes, vgpu_use_t use);

/* Reserve for a hook: CUDA_SUCCESS, or the refusal to hand to the program. card may be a VGPU_CARD_ constant. */
CUresult vgpu_reserve(int card, uint64_t bytes, vgpu_use_t use);
void vgpu_return(int card, uint64_t bytes, vgpu_use_t use);

/*
 * Write down a granted object. false: no memory for the entry; the caller frees the object and returns the bytes.
 */
bool vgpu_note(book_kind_t kind, uint64_t key, uint64_t bytes, uint64_t context, int card, vgpu_use_t use);

/* As vgpu_note, for an entry that was taken out before or carries a pool. */
bool vgpu_put_entry(const book_entry_t *entry);

/* Return the bytes of an entry taken out of the book. */
void vgpu_return_entry(const book_entry_t *entry);

/* Drop all entries that died with a context, and return their bytes. */
void vgpu_drop_context(uint64_t context);

/* What cuInit returns while nothing may be granted. */
CUresult vgpu_closed_error(void);

#endif
