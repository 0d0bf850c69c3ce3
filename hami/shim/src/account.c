#include "account.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lock.h"
#include "log.h"
#include "member.h"

#define WAITERS           0x80000000U
#define SPINS             100
#define WAIT_NS           2000000     /* how long to sleep before asking whether the holder lives */
#define SWEEP_INTERVAL_NS 100000000LL /* readers look for the dead at most this often */

static uint32_t load_word(const uint32_t *word) {
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static bool swap_word(uint32_t *word, uint32_t expected, uint32_t wanted) {
    return __atomic_compare_exchange_n(word, &expected, wanted, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static void wake_one(uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/*
 * The holder is gone when its slot's byte lock is. We hold that byte while we take over, so that no new process can own
 * the slot, and with it this lock, in between.
 */
static bool take_from_dead(uint32_t *word, uint32_t seen, uint32_t wanted) {
    int slot = (int)(seen & ~WAITERS) - 1;
    if (slot < 0 || slot == vgpu_member.slot) {
        return false;
    }
    int fd = vgpu_member_hold_dead(slot);
    if (fd < 0) {
        return false;
    }
    bool taken = swap_word(word, seen, wanted);
    close(fd);
    return taken;
}

static void card_lock_slow(uint32_t *word, uint32_t mine) {
    for (int i = 0; i < SPINS; i++) {
        if (load_word(word) == 0 && swap_word(word, 0, mine)) {
            return;
        }
        cpu_relax();
    }
    const struct timespec wait = {0, WAIT_NS};
    for (;;) {
        uint32_t seen = load_word(word);
        if (seen == 0) {
            /* Keep the mark: we cannot know whether others still sleep. */
            if (swap_word(word, 0, mine | WAITERS)) {
                return;
            }
            continue;
        }
        if ((seen & WAITERS) == 0 && !swap_word(word, seen, seen | WAITERS)) {
            continue;
        }
        seen |= WAITERS;
        long slept = syscall(SYS_futex, word, FUTEX_WAIT, seen, &wait, NULL, 0);
        if (slept != 0 && load_word(word) == seen && take_from_dead(word, seen, mine | WAITERS)) {
            return;
        }
    }
}

static void card_lock(vgpu_region_t *region, int card) {
    uint32_t *word = &region->tail.lock[card].word;
    uint32_t mine = (uint32_t)vgpu_member.slot + 1;
    if (!swap_word(word, 0, mine)) {
        card_lock_slow(word, mine);
    }
}

static void card_unlock(vgpu_region_t *region, int card) {
    uint32_t *word = &region->tail.lock[card].word;
    if ((__atomic_exchange_n(word, 0, __ATOMIC_RELEASE) & WAITERS) != 0) {
        wake_one(word);
    }
}

void vgpu_account_release_locks(vgpu_region_t *region, int slot) {
    for (int card = 0; card < VGPU_MAX_DEVICES; card++) {
        uint32_t *word = &region->tail.lock[card].word;
        uint32_t seen = load_word(word);
        if ((seen & ~WAITERS) == (uint32_t)slot + 1 && swap_word(word, seen, 0)) {
            syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
        }
    }
}

static uint64_t sum(const vgpu_region_t *region, int card) {
    uint32_t high = __atomic_load_n(&region->tail.slot_high, __ATOMIC_ACQUIRE);
    uint64_t bytes = 0;
    for (uint32_t slot = 0; slot < high && slot < VGPU_MAX_SLOTS; slot++) {
        bytes += __atomic_load_n(&region->procs[slot].used[card].total, __ATOMIC_RELAXED);
    }
    return bytes;
}

static uint64_t *part_of(vgpu_usage_t *usage, vgpu_use_t use) {
    return use == VGPU_USE_CONTEXT ? &usage->context : use == VGPU_USE_MODULE ? &usage->module : &usage->data;
}

static void raise(vgpu_region_t *region, int card, uint64_t bytes, vgpu_use_t use) {
    vgpu_usage_t *usage = &region->procs[vgpu_member.slot].used[card];
    __atomic_fetch_add(&usage->total, bytes, __ATOMIC_RELAXED);
    __atomic_fetch_add(part_of(usage, use), bytes, __ATOMIC_RELAXED);
}

uint64_t vgpu_account_limit(int card) {
    uint64_t limit = __atomic_load_n(&vgpu_member.region->memory_limit[card], __ATOMIC_RELAXED);
    uint64_t cap = vgpu_member.own_cap[card];
    return cap != 0 && (limit == 0 || cap < limit) ? cap : limit;
}

static bool try_reserve(int card, uint64_t bytes, vgpu_use_t use) {
    vgpu_region_t *region = vgpu_member.region;
    card_lock(region, card);
    uint64_t limit = vgpu_account_limit(card);
    uint64_t used = sum(region, card);
    bool fits = bytes == 0 || limit == 0 || (used <= limit && bytes <= limit - used);
    if (fits) {
        raise(region, card, bytes, use);
    }
    card_unlock(region, card);
    return fits;
}

bool vgpu_account_reserve(int card, uint64_t bytes, vgpu_use_t use) {
    if (try_reserve(card, bytes, use)) {
        return true;
    }
    /* Only when over the limit do we pay to find out who has died. */
    if (vgpu_member_sweep() > 0 && try_reserve(card, bytes, use)) {
        return true;
    }
    vgpu_log(LOG_WARNING, "refused %llu bytes on card %d: %llu of %llu in use", (unsigned long long)bytes, card,
             (unsigned long long)sum(vgpu_member.region, card), (unsigned long long)vgpu_account_limit(card));
    return false;
}

void vgpu_account_force(int card, uint64_t bytes, vgpu_use_t use) {
    raise(vgpu_member.region, card, bytes, use);
}

void vgpu_account_return(int card, uint64_t bytes, vgpu_use_t use) {
    vgpu_usage_t *usage = &vgpu_member.region->procs[vgpu_member.slot].used[card];
    __atomic_fetch_sub(part_of(usage, use), bytes, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&usage->total, bytes, __ATOMIC_RELEASE);
}

static bool others_hold(const vgpu_region_t *region, int card) {
    uint32_t high = __atomic_load_n(&region->tail.slot_high, __ATOMIC_ACQUIRE);
    for (uint32_t slot = 0; slot < high && slot < VGPU_MAX_SLOTS; slot++) {
        if ((int)slot != vgpu_member.slot && __atomic_load_n(&region->procs[slot].used[card].total, __ATOMIC_RELAXED)) {
            return true;
        }
    }
    return false;
}

static int64_t coarse_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000000000LL + now.tv_nsec;
}

uint64_t vgpu_account_used(int card) {
    static _Atomic int64_t last_sweep;
    const vgpu_region_t *region = vgpu_member.region;
    if (others_hold(region, card)) {
        int64_t now = coarse_now_ns();
        int64_t last = atomic_load_explicit(&last_sweep, memory_order_relaxed);
        if (now - last > SWEEP_INTERVAL_NS && atomic_compare_exchange_strong(&last_sweep, &last, now)) {
            vgpu_member_sweep();
        }
    }
    return sum(region, card);
}
