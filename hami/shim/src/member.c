#include "member.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "account.h"
#include "filelock.h"
#include "region_file.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

vgpu_self_t *_Atomic vgpu_self;
vgpu_member_t vgpu_member;
static char member_path[4096];

bool vgpu_member_pid_matches(void) {
    const vgpu_self_t *self = atomic_load_explicit(&vgpu_self, memory_order_acquire);
    return atomic_load_explicit(&self->pid, memory_order_relaxed) == getpid();
}

vgpu_self_t *vgpu_self_get(void) {
    vgpu_self_t *self = atomic_load_explicit(&vgpu_self, memory_order_acquire);
    if (self != NULL) {
        return self;
    }
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        return NULL;
    }
    ((vgpu_self_t *)page)->checks_pid = madvise(page, size, MADV_WIPEONFORK) != 0;
    if (!atomic_compare_exchange_strong(&vgpu_self, &self, page)) {
        munmap(page, size); /* another thread was first */
        return self;
    }
    return page;
}

static int find_card(const vgpu_region_t *region, const char *uuid) {
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
        if (strncmp(region->uuid[i], uuid, VGPU_UUID_LEN) == 0) {
            return i;
        }
    }
    return -1;
}

static int free_place(const vgpu_region_t *region, int wished) {
    if (wished >= 0 && wished < VGPU_MAX_DEVICES && region->uuid[wished][0] == '\0') {
        return wished;
    }
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
        if (region->uuid[i][0] == '\0') {
            return i;
        }
    }
    return -1;
}

/* Under the init lock. A card keeps its place for the life of the region: what a killed joiner left is only a name. */
static void enter_card(vgpu_region_t *region, vgpu_card_t *card) {
    int index = find_card(region, card->uuid);
    if (index < 0) {
        index = free_place(region, card->card);
        if (index < 0) {
            card->index = -1;
            return;
        }
        region->memory_limit[index] = card->limit;
        region->tail.configured_limit[index] = card->limit;
        region->core_limit[index] = card->core_limit;
        memcpy(region->uuid[index], card->uuid, VGPU_UUID_LEN);
    }
    if ((uint64_t)index >= region->device_count) {
        region->device_count = (uint64_t)index + 1;
    }
    card->index = index;
    if (region->tail.configured_limit[index] == 0 && card->limit != 0) {
        /* The first process had lost its settings (a cleared environment); the limit holds from now on for all. */
        region->memory_limit[index] = card->limit;
        region->tail.configured_limit[index] = card->limit;
    }
    uint64_t configured = region->tail.configured_limit[index];
    vgpu_member.own_cap[index] = card->mounted || card->limit < configured ? card->limit : 0;
}

static void clear_slot(vgpu_region_t *region, int slot) {
    vgpu_slot_t *record = &region->procs[slot];
    __atomic_store_n(&record->status, VGPU_SLOT_FREE, __ATOMIC_RELAXED);
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
        __atomic_store_n(&record->used[i].total, 0, __ATOMIC_RELAXED);
    }
    memset(record, 0, sizeof *record);
}

/* First slot whose byte we can lock, below "end"; slots marked as running are only tried where "running" says so. */
static int lock_slot(const vgpu_region_t *region, int fd, int end, bool running) {
    for (int slot = 0; slot < end; slot++) {
        bool used = __atomic_load_n(&region->tail.slot_in_use[slot], __ATOMIC_RELAXED) != 0 &&
                    region->procs[slot].status != VGPU_SLOT_FREE;
        if (used == running && vgpu_file_try_lock(fd, VGPU_LOCK_SLOT_BASE + slot)) {
            return slot;
        }
    }
    return -1;
}

/*
 * Under the init lock. Each slot in use costs all readers a load, so before the table grows past a power of two the
 * slots of killed processes are looked for: joining stays cheap on average.
 */
static int take_slot(vgpu_region_t *region, int fd) {
    int high = (int)region->tail.slot_high;
    int slot = lock_slot(region, fd, VGPU_MAX_SLOTS, false);
    if (slot < 0 || (slot >= high && high >= 16 && (high & (high - 1)) == 0)) {
        int reclaimed = lock_slot(region, fd, high, true);
        if (reclaimed >= 0 && slot >= 0) {
            vgpu_file_unlock(fd, VGPU_LOCK_SLOT_BASE + slot);
        }
        slot = reclaimed >= 0 ? reclaimed : slot;
    }
    if (slot >= 0) {
        clear_slot(region, slot);
        vgpu_account_release_locks(region, slot);
        __atomic_store_n(&region->tail.slot_in_use[slot], 1, __ATOMIC_RELAXED);
    }
    return slot;
}

static void publish(vgpu_region_t *region, int slot) {
    region->procs[slot].pid = getpid();
    if ((uint32_t)slot >= region->tail.slot_high) {
        __atomic_store_n(&region->tail.slot_high, (uint32_t)slot + 1, __ATOMIC_RELEASE);
        __atomic_store_n(&region->proc_count, slot + 1, __ATOMIC_RELEASE);
    }
    __atomic_fetch_add(&region->tail.joins, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&region->procs[slot].status, VGPU_SLOT_RUNNING, __ATOMIC_RELEASE);
}

/* With the init lock held and the region mapped. */
static bool join_mapped(vgpu_region_t *region, int fd, vgpu_card_t *cards, int count, int32_t priority,
                        const char **why) {
    bool alone = !vgpu_file_range_locked(fd, VGPU_LOCK_SLOT_BASE, VGPU_MAX_SLOTS);
    if (alone) {
        vgpu_region_init(region, priority);
    } else if (!vgpu_region_valid(region)) {
        *why = "in use with another layout";
        return false;
    }
    int slot = take_slot(region, fd);
    if (slot < 0) {
        *why = "all process slots are taken";
        return false;
    }
    memset(&vgpu_member, 0, sizeof vgpu_member);
    for (int i = 0; i < count; i++) {
        enter_card(region, &cards[i]);
    }
    publish(region, slot);
    vgpu_member.region = region;
    vgpu_member.slot = slot;
    return true;
}

bool vgpu_member_join(const char *path, vgpu_card_t *cards, int card_count, int32_t priority, const char **why) {
    int fd = vgpu_region_open(path, why);
    if (fd < 0) {
        return false;
    }
    bool joined = false;
    vgpu_region_t *region = MAP_FAILED;
    if (!vgpu_file_lock(fd, VGPU_LOCK_INIT)) {
        *why = strerror(errno);
    } else if (vgpu_region_grow(fd, why)) {
        region = mmap(NULL, sizeof *region, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (region == MAP_FAILED || madvise(region, sizeof *region, MADV_DONTFORK) != 0) {
            *why = strerror(errno);
        } else {
            joined = join_mapped(region, fd, cards, card_count, priority, why);
        }
    }
    vgpu_file_unlock(fd, VGPU_LOCK_INIT);
    close(fd); /* the mapping keeps the description, and with it the slot's lock, alive */
    if (!joined) {
        if (region != MAP_FAILED) {
            munmap(region, sizeof *region);
        }
        return false;
    }
    snprintf(member_path, sizeof member_path, "%s", path);
    vgpu_self_t *self = vgpu_self_get();
    atomic_store_explicit(&self->pid, getpid(), memory_order_relaxed);
    atomic_store_explicit(&self->joined, 1, memory_order_release);
    return true;
}

void vgpu_member_leave(void) {
    /*
     * Another thread may be between two steps, so the region stays mapped and the slot stays marked: what such a thread
     * still adds is cleared by others once the byte lock is gone with the process.
     */
    clear_slot(vgpu_member.region, vgpu_member.slot);
}

/* Descriptors are opened when needed and closed at once: none is left for the program to close or inherit. */
static int open_again(void) {
    return open(member_path, O_RDWR | O_CLOEXEC);
}

int vgpu_member_hold_dead(int slot) {
    int saved = errno;
    int fd = open_again();
    if (fd >= 0 && !vgpu_file_try_lock(fd, VGPU_LOCK_SLOT_BASE + slot)) {
        close(fd);
        fd = -1;
    }
    errno = saved;
    return fd;
}

bool vgpu_slot_locked(int fd, int slot) {
    return vgpu_file_range_locked(fd, VGPU_LOCK_SLOT_BASE + slot, 1);
}

static bool sweep_slot(vgpu_region_t *region, int fd, int slot) {
    /* Holding the byte ourselves keeps a joiner from taking the slot while we clear it. */
    if (!vgpu_file_try_lock(fd, VGPU_LOCK_SLOT_BASE + slot)) {
        return false;
    }
    bool dirty = __atomic_load_n(&region->tail.slot_in_use[slot], __ATOMIC_RELAXED) != 0;
    if (dirty) {
        clear_slot(region, slot);
        vgpu_account_release_locks(region, slot);
        __atomic_store_n(&region->tail.slot_in_use[slot], 0, __ATOMIC_RELAXED);
    }
    vgpu_file_unlock(fd, VGPU_LOCK_SLOT_BASE + slot);
    return dirty;
}

int vgpu_member_sweep(void) {
    int saved = errno;
    vgpu_region_t *region = vgpu_member.region;
    uint32_t high = __atomic_load_n(&region->tail.slot_high, __ATOMIC_ACQUIRE);
    int cleared = 0;
    int fd = -1;
    for (uint32_t slot = 0; slot < high && slot < VGPU_MAX_SLOTS; slot++) {
        if ((int)slot == vgpu_member.slot || __atomic_load_n(&region->tail.slot_in_use[slot], __ATOMIC_RELAXED) == 0) {
            continue;
        }
        if (fd < 0) {
            fd = open_again();
            if (fd < 0) {
                break;
            }
        }
        cleared += sweep_slot(region, fd, (int)slot) ? 1 : 0;
    }
    if (fd >= 0) {
        close(fd);
    }
    errno = saved;
    return cleared;
}
