/*
 * Grant and return bytes of a card: the one place where use is compared with the limit.
 *
 * A grant is one step for all processes of the container: under the card's lock, the sum over all slots is compared
 * with the limit and our own counter is raised. The lock is never held across a driver call. A holder that was killed
 * is found out by its byte lock; nothing can be left half done, because the grant is a single store.
 */
#ifndef HAMI_SHIM_ACCOUNT_H
#define HAMI_SHIM_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "region.h"

typedef enum { VGPU_USE_CONTEXT, VGPU_USE_MODULE, VGPU_USE_DATA } vgpu_use_t;

/* Reserve bytes on a card of the region; false when that would exceed the limit. */
bool vgpu_account_reserve(int card, uint64_t bytes, vgpu_use_t use);

/* Count bytes that exist already, limit or not. */
void vgpu_account_force(int card, uint64_t bytes, vgpu_use_t use);

/* Give back what was reserved. */
void vgpu_account_return(int card, uint64_t bytes, vgpu_use_t use);

/* Limit of a card for this process, live; 0 means none. */
uint64_t vgpu_account_limit(int card);

/* Bytes in use on a card by all living processes of the container. */
uint64_t vgpu_account_used(int card);

/* Take away card locks that a former owner of this slot left behind. */
void vgpu_account_release_locks(vgpu_region_t *region, int slot);

#endif
