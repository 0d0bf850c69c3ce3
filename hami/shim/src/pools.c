#include "pools.h"

#include <string.h>

#include "hook.h"
#include "lock.h"
#include "log.h"
#include "reset.h"

#define MAX_POOLS 256

typedef struct {
    CUmemoryPool pool; /* NULL: free place */
    int card;
    uint64_t idle; /* charged, not lent out */
} pool_t;

static pool_t pools[MAX_POOLS];
static int pool_count;
static _Atomic uint64_t idle_total; /* a hint for calls that must stay cheap */
static local_lock_t lock;

void vgpu_reset_pools(void) {
    memset(pools, 0, sizeof pools);
    pool_count = 0;
    atomic_store(&idle_total, 0);
    atomic_store(&lock.word, 0);
}

/* Under the lock. */
static pool_t *find(CUmemoryPool pool) {
    for (int i = 0; i < pool_count; i++) {
        if (pools[i].pool == pool) {
            return &pools[i];
        }
    }
    return NULL;
}

static void set_idle(pool_t *record, uint64_t idle) {
    if (idle > record->idle) {
        vgpu_account_force(record->card, idle - record->idle, VGPU_USE_DATA);
        atomic_fetch_add(&idle_total, idle - record->idle);
    } else if (idle < record->idle) {
        vgpu_account_return(record->card, record->idle - idle, VGPU_USE_DATA);
        atomic_fetch_sub(&idle_total, record->idle - idle);
    }
    record->idle = idle;
}

static uint64_t number(CUmemoryPool pool, CUmemPool_attribute attribute) {
    __typeof__(&cuMemPoolGetAttribute) get = DRIVER(cuMemPoolGetAttribute);
    uint64_t value = 0;
    return get != NULL && get(pool, attribute, &value) == CUDA_SUCCESS ? value : 0;
}

/* Under the lock, so that an older answer cannot overwrite a newer one. The lock is this process's own, and asking for
 * an attribute calls nothing of ours. */
static void settle(pool_t *record) {
    uint64_t reserved = number(record->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    uint64_t used = number(record->pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    set_idle(record, reserved > used ? reserved - used : 0);
}

void vgpu_pool_watch(CUmemoryPool pool, int card) {
    local_lock(&lock);
    pool_t *record = find(pool);
    if (record == NULL && card >= 0) {
        record = find(NULL);
        if (record == NULL && pool_count < MAX_POOLS) {
            record = &pools[pool_count++];
        }
        if (record != NULL) {
            *record = (pool_t){.pool = pool, .card = card};
        } else {
            vgpu_log(LOG_WARNING, "above %d memory pools: what the others keep after a free is not counted", MAX_POOLS);
        }
    }
    local_unlock(&lock);
}

void vgpu_pool_settle(CUmemoryPool pool) {
    local_lock(&lock);
    pool_t *record = find(pool);
    if (record != NULL) {
        settle(record);
    }
    local_unlock(&lock);
}

void vgpu_pools_settle(void) {
    if (atomic_load_explicit(&idle_total, memory_order_relaxed) == 0) {
        return;
    }
    local_lock(&lock);
    for (int i = 0; i < pool_count; i++) {
        if (pools[i].pool != NULL && pools[i].idle > 0) {
            settle(&pools[i]);
        }
    }
    local_unlock(&lock);
}

bool vgpu_pools_trim(void) {
    __typeof__(&cuMemPoolTrimTo) trim = REAL(cuMemPoolTrimTo);
    if (atomic_load_explicit(&idle_total, memory_order_relaxed) == 0 || trim == NULL) {
        return false;
    }
    CUmemoryPool idle[MAX_POOLS];
    int count = 0;
    local_lock(&lock);
    for (int i = 0; i < pool_count; i++) {
        if (pools[i].pool != NULL && pools[i].idle > 0) {
            idle[count++] = pools[i].pool;
        }
    }
    local_unlock(&lock);
    for (int i = 0; i < count; i++) {
        trim(idle[i], 0);
    }
    vgpu_pools_settle();
    return true;
}

uint64_t vgpu_pool_use_idle(CUmemoryPool pool, uint64_t bytes) {
    local_lock(&lock);
    pool_t *record = find(pool);
    uint64_t taken = record == NULL ? 0 : bytes < record->idle ? bytes : record->idle;
    if (taken > 0) {
        record->idle -= taken;
        atomic_fetch_sub(&idle_total, taken);
    }
    local_unlock(&lock);
    return taken;
}

void vgpu_pool_forget(CUmemoryPool pool) {
    local_lock(&lock);
    pool_t *record = find(pool);
    if (record != NULL) {
        set_idle(record, 0);
        *record = (pool_t){0};
    }
    local_unlock(&lock);
}

/* Default pools are never created by the program; the device they belong to is found by asking. */
static int default_pool_card(CUmemoryPool pool) {
    __typeof__(&cuDeviceGetCount) count_devices = DRIVER(cuDeviceGetCount);
    __typeof__(&cuDeviceGetDefaultMemPool) default_pool = DRIVER(cuDeviceGetDefaultMemPool);
    int count = 0;
    if (count_devices == NULL || default_pool == NULL || count_devices(&count) != CUDA_SUCCESS) {
        return vgpu_current_card(NULL);
    }
    for (CUdevice device = 0; device < count; device++) {
        CUmemoryPool candidate;
        if (default_pool(&candidate, device) == CUDA_SUCCESS && candidate == pool) {
            return vgpu_card_of(device);
        }
    }
    return vgpu_current_card(NULL);
}

int vgpu_pool_card(CUmemoryPool pool) {
    book_entry_t entry;
    if (book_find(BOOK_POOL, (uint64_t)(uintptr_t)pool, &entry)) {
        return entry.card;
    }
    int card = default_pool_card(pool);
    if (card >= 0) {
        entry = (book_entry_t){.key = (uint64_t)(uintptr_t)pool, .kind = BOOK_POOL, .card = (int16_t)card};
        vgpu_put_entry(&entry);
    }
    return card;
}

CUresult vgpu_freed(const book_entry_t *entry, CUresult result) {
    if (result != CUDA_SUCCESS) {
        vgpu_put_entry(entry);
        return result;
    }
    if (entry->pool != 0) {
        vgpu_pool_settle((CUmemoryPool)(uintptr_t)entry->pool); /* first: the bytes stay charged as long as they stay */
    }
    vgpu_return_entry(entry);
    return result;
}
