/*
 * The shared region: one file per container, mapped by every process that uses a card, and by the monitor.
 *
 * The first part has, byte for byte, version 1.2 of the layout that HAMi's monitors read (spec/shim.md section 5); the
 * tail behind it is ours. Truth and mirror are one: the bytes a process holds on a card are
 * procs[slot].used[card].total and nothing else, so no two copies can disagree after a kill. hami/shim/layout.py says
 * the same in Python; a test compares the two.
 */
#ifndef HAMI_SHIM_REGION_H
#define HAMI_SHIM_REGION_H

#include <stddef.h>
#include <stdint.h>

#define VGPU_REGION_MAGIC 19920718
#define VGPU_MAX_DEVICES  16
#define VGPU_MAX_SLOTS    1024
#define VGPU_UUID_LEN     96

#define VGPU_TAIL_MAGIC   0x4c494154554d4148ULL /* "HAMUTAIL", little endian */
#define VGPU_TAIL_VERSION 1

/* Advisory byte locks (open file description locks) live past the end of the file. */
#define VGPU_LOCK_SLOT_BASE 0x40000000LL
#define VGPU_LOCK_INIT      (VGPU_LOCK_SLOT_BASE + VGPU_MAX_SLOTS)

enum { VGPU_SLOT_FREE = 0, VGPU_SLOT_RUNNING = 1, VGPU_SLOT_SUSPENDED = 2 };

typedef struct {
    uint64_t context;
    uint64_t module;
    uint64_t data;
    uint64_t offset;
    uint64_t total; /* what the limit is compared with */
    uint64_t unused[3];
} vgpu_usage_t;

typedef struct {
    uint64_t decoder;
    uint64_t encoder;
    uint64_t sm;
    uint64_t unused[3];
} vgpu_utilization_t;

typedef struct {
    int32_t pid;
    int32_t host_pid;
    vgpu_usage_t used[VGPU_MAX_DEVICES];
    uint64_t monitor_used[VGPU_MAX_DEVICES];
    vgpu_utilization_t utilization[VGPU_MAX_DEVICES];
    int32_t status;
    int32_t padding;
    uint64_t sequence;
    uint64_t unused[2];
} vgpu_slot_t;

typedef struct {
    uint32_t word; /* 0 free, else slot + 1 of the holder; top bit: somebody waits */
    uint32_t pad[15];
} vgpu_lock_t;

/* Room for compute limits, one record per card on its own cache lines. */
typedef struct {
    uint64_t reserved[16];
} vgpu_core_state_t;

typedef struct {
    uint64_t magic;
    uint32_t version;
    uint32_t size;
    uint32_t slot_high; /* slots at or above this index were never used */
    uint32_t pad0;
    uint64_t joins; /* how many processes ever joined; changes tell a measurement that it was not alone */
    uint64_t configured_limit[VGPU_MAX_DEVICES]; /* as the first process read it; live changes go to memory_limit */
    uint64_t context_bytes[VGPU_MAX_DEVICES];    /* measured size of one context plus 1; 0 = not measured */
    uint8_t pad1[32];
    vgpu_lock_t lock[VGPU_MAX_DEVICES];
    vgpu_core_state_t core[VGPU_MAX_DEVICES];
    uint8_t slot_in_use[VGPU_MAX_SLOTS]; /* a hint for joiners; the byte lock decides */
} vgpu_tail_t;

#define VGPU_TAIL_OFFSET 2011136 /* first page after the version 1.2 part */

typedef struct {
    int32_t initialized;
    uint32_t major_version;
    uint32_t minor_version;
    int32_t sm_init;
    uint64_t owner_pid;
    uint64_t semaphore[4];
    uint64_t device_count;
    char uuid[VGPU_MAX_DEVICES][VGPU_UUID_LEN];
    uint64_t memory_limit[VGPU_MAX_DEVICES];
    uint64_t core_limit[VGPU_MAX_DEVICES];
    vgpu_slot_t procs[VGPU_MAX_SLOTS];
    int32_t proc_count;
    int32_t utilization_switch;
    int32_t recent_kernel;
    int32_t priority;
    uint64_t last_kernel_time;
    uint64_t post_init_semaphore[4];
    uint8_t gap[VGPU_TAIL_OFFSET - 2008952];
    vgpu_tail_t tail;
} vgpu_region_t;

#define VGPU_REGION_V1_SIZE 2008952

_Static_assert(offsetof(vgpu_region_t, device_count) == 56, "v1.2 device count");
_Static_assert(offsetof(vgpu_region_t, uuid) == 64, "v1.2 uuids");
_Static_assert(offsetof(vgpu_region_t, memory_limit) == 1600, "v1.2 memory limit");
_Static_assert(offsetof(vgpu_region_t, core_limit) == 1728, "v1.2 core limit");
_Static_assert(offsetof(vgpu_region_t, procs) == 1856, "v1.2 process slots");
_Static_assert(sizeof(vgpu_slot_t) == 1960, "v1.2 slot size");
_Static_assert(offsetof(vgpu_slot_t, monitor_used) == 1032, "v1.2 slot monitor use");
_Static_assert(offsetof(vgpu_slot_t, utilization) == 1160, "v1.2 slot utilisation");
_Static_assert(offsetof(vgpu_slot_t, status) == 1928, "v1.2 slot status");
_Static_assert(offsetof(vgpu_slot_t, sequence) == 1936, "v1.2 slot sequence");
_Static_assert(offsetof(vgpu_region_t, proc_count) == 2008896, "v1.2 process count");
_Static_assert(offsetof(vgpu_region_t, last_kernel_time) == 2008912, "v1.2 last kernel time");
_Static_assert(offsetof(vgpu_region_t, post_init_semaphore) == 2008920, "v1.2 second semaphore");
_Static_assert(offsetof(vgpu_region_t, gap) == VGPU_REGION_V1_SIZE, "v1.2 size");
_Static_assert(offsetof(vgpu_region_t, tail) == VGPU_TAIL_OFFSET, "tail offset");
_Static_assert(offsetof(vgpu_tail_t, lock) % 64 == 0, "locks on their own cache lines");

#endif
