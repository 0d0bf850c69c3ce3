/*
 * What memory pools hold beyond their live allocations.
 *
 * A live allocation is charged with the bytes asked for. After a free the pool keeps the memory, until the next
 * synchronisation or, above zero of its release threshold, for good: that part ("idle") is on the card and charged too.
 * It is used up first by the next allocation from the pool, and given back before anything is refused.
 */
#ifndef HAMI_SHIM_POOLS_H
#define HAMI_SHIM_POOLS_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_min.h"

/* Card of a pool; VGPU_CARD_NONE for pools of host memory. */
int vgpu_pool_card(CUmemoryPool pool);

/* Watch a pool from its first allocation on. */
void vgpu_pool_watch(CUmemoryPool pool, int card);

/* Ask the driver what a watched pool holds, and charge what is idle. Others may be destroyed, and are not asked. */
void vgpu_pool_settle(CUmemoryPool pool);

/* The same for all pools, where any had idle memory. For calls that synchronise. */
void vgpu_pools_settle(void);

/* Let the driver give idle memory of all pools back; true if there was any. */
bool vgpu_pools_trim(void);

/* Take up to "bytes" of idle memory for an allocation from the pool; it stays charged. */
uint64_t vgpu_pool_use_idle(CUmemoryPool pool, uint64_t bytes);

/* The pool is destroyed. */
void vgpu_pool_forget(CUmemoryPool pool);

#endif
