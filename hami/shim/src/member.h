/*
 * Membership of this process in the shared region: the mapping, our slot, and who else is alive.
 *
 * A process is alive while it holds the byte lock of its slot. The lock belongs to the open file description behind the
 * mapping, and nothing else refers to that description: no descriptor stays open (programs close what they do not
 * know), and fork children do not inherit the mapping. So the kernel drops the lock when the process image ends,
 * however it ends, and never earlier.
 */
#ifndef HAMI_SHIM_MEMBER_H
#define HAMI_SHIM_MEMBER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lock.h"
#include "region.h"

typedef struct {
    char uuid[VGPU_UUID_LEN];
    uint64_t limit;      /* 0: none */
    bool mounted;        /* the limit comes from the mounted file: nothing in the region can raise it */
    uint32_t core_limit; /* percent */
    int card;            /* wished place in the region, -1: any */
    int index;           /* out: place in the region, -1: no room */
} vgpu_card_t;

typedef struct {
    vgpu_region_t *region;
    int slot;
    uint64_t own_cap[VGPU_MAX_DEVICES]; /* what this process may have whatever the region says; 0: no more than there */
} vgpu_member_t;

/* A wiped-on-fork page: what must read as zero in a fork child. */
typedef struct {
    _Atomic uint32_t joined;
    _Atomic int32_t pid;    /* only compared where the kernel cannot wipe pages on fork, */
    bool checks_pid;        /* which this says; set before the page is seen by others */
    local_lock_t join_lock; /* held while joining; a thread that fork did not copy leaves no locked lock behind */
} vgpu_self_t;

/* NULL until vgpu_self_get() made the page. */
extern vgpu_self_t *_Atomic vgpu_self;
extern vgpu_member_t vgpu_member;

/* The page, made at the first call; NULL when there is no memory for it. */
vgpu_self_t *vgpu_self_get(void);

/* Is this very process (not an ancestor before fork) a member? One load on kernels that wipe pages on fork. */
bool vgpu_member_pid_matches(void);
static inline bool vgpu_joined(void) {
    const vgpu_self_t *self = atomic_load_explicit(&vgpu_self, memory_order_acquire);
    return self != NULL && atomic_load_explicit(&self->joined, memory_order_acquire) != 0 &&
           (!self->checks_pid || vgpu_member_pid_matches());
}

/*
 * Become a member: map the file (creating it if needed), take a slot, enter the cards. The first member of a region in
 * which nobody is alive starts it afresh. Returns false with *why set. Callers serialise.
 */
bool vgpu_member_join(const char *path, vgpu_card_t *cards, int card_count, int32_t priority, const char **why);

/* Give all memory back at a clean exit. */
void vgpu_member_leave(void);

/* Clear slots of members that are gone, so that their bytes can be granted again. Returns how many were cleared. */
int vgpu_member_sweep(void);

/*
 * If the owner of this slot is gone, keep the slot from being taken again until the returned descriptor is closed.
 * -1 when it lives or when that cannot be found out.
 */
int vgpu_member_hold_dead(int slot);

/* Does another process hold this slot of a region file? fd may be read-only; "cannot tell" counts as yes. */
bool vgpu_slot_locked(int fd, int slot);

#endif
