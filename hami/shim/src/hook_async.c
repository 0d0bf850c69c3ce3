/*
 * Stream-ordered allocations and memory pools.
 *
 * A live allocation is charged with the bytes asked for. A pool whose release threshold is above zero keeps memory
 * after the free; what it keeps for good, at most the threshold, is charged as well ("idle") and used up first by the
 * next allocation from it. Pools with the default threshold give memory back at the next synchronisation and are not
 * asked.
 */
#include <stdint.h>
#include <string.h>

#include "graph.h"
#include "hook.h"
#include "lock.h"
#include "reset.h"

#define MAX_KEEPING 64

typedef struct {
    CUmemoryPool pool;
    int card;
    uint64_t threshold;
    uint64_t idle; /* charged, not lent out */
} keeping_t;

static keeping_t keeping[MAX_KEEPING];
static _Atomic int keeping_count;
static local_lock_t keeping_lock;

static keeping_t *find_keeping(CUmemoryPool pool) {
    int count = atomic_load_explicit(&keeping_count, memory_order_relaxed);
    for (int i = 0; i < count; i++) {
        if (keeping[i].pool == pool) {
            return &keeping[i];
        }
    }
    return NULL;
}

void vgpu_reset_pools(void) {
    memset(keeping, 0, sizeof keeping);
    atomic_store(&keeping_count, 0);
    atomic_store(&keeping_lock.word, 0);
}

static uint64_t pool_number(CUmemoryPool pool, CUmemPool_attribute attribute) {
    __typeof__(&cuMemPoolGetAttribute) get = DRIVER(cuMemPoolGetAttribute);
    uint64_t value = 0;
    return get != NULL && get(pool, attribute, &value) == CUDA_SUCCESS ? value : 0;
}

/* Charge what the pool keeps now. */
static void reconcile(CUmemoryPool pool) {
    uint64_t reserved = pool_number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    uint64_t used = pool_number(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    local_lock(&keeping_lock);
    keeping_t *record = find_keeping(pool);
    if (record != NULL && record->card >= 0) {
        uint64_t kept = reserved < record->threshold ? reserved : record->threshold;
        uint64_t idle = kept > used ? kept - used : 0;
        if (idle > record->idle) {
            vgpu_account_force(record->card, idle - record->idle, VGPU_USE_DATA);
        } else {
            vgpu_account_return(record->card, record->idle - idle, VGPU_USE_DATA);
        }
        record->idle = idle;
    }
    local_unlock(&keeping_lock);
}

static void reconcile_all(void) {
    for (int i = 0; i < atomic_load_explicit(&keeping_count, memory_order_acquire); i++) {
        if (keeping[i].pool != NULL) {
            reconcile(keeping[i].pool);
        }
    }
}

/* Take up to "bytes" of idle memory for an allocation; it stays charged. */
static uint64_t use_idle(CUmemoryPool pool, uint64_t bytes) {
    local_lock(&keeping_lock);
    keeping_t *record = find_keeping(pool);
    uint64_t taken = record == NULL ? 0 : bytes < record->idle ? bytes : record->idle;
    if (record != NULL) {
        record->idle -= taken;
    }
    local_unlock(&keeping_lock);
    return taken;
}

static void keep(CUmemoryPool pool, int card, uint64_t threshold) {
    local_lock(&keeping_lock);
    keeping_t *record = find_keeping(pool);
    int count = atomic_load_explicit(&keeping_count, memory_order_relaxed);
    if (record == NULL && threshold > 0) {
        record = find_keeping(NULL); /* a place that a destroyed pool left */
        if (record == NULL && count < MAX_KEEPING) {
            record = &keeping[count];
            atomic_store_explicit(&keeping_count, count + 1, memory_order_release);
        }
        if (record != NULL) {
            *record = (keeping_t){.pool = pool, .card = card};
        }
    }
    if (record != NULL) {
        record->threshold = threshold;
    }
    local_unlock(&keeping_lock);
}

static void forget(CUmemoryPool pool) {
    local_lock(&keeping_lock);
    keeping_t *record = find_keeping(pool);
    if (record != NULL) {
        vgpu_return(record->card, record->idle, VGPU_USE_DATA);
        memset(record, 0, sizeof *record);
    }
    local_unlock(&keeping_lock);
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

static int pool_card(CUmemoryPool pool) {
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

typedef struct {
    int card;
    CUmemoryPool pool;
    CUgraph graph;
    uint64_t bytes;
    uint64_t from_idle;
} grant_t;

static CUmemoryPool current_pool(CUdevice device) {
    __typeof__(&cuDeviceGetMemPool) get = DRIVER(cuDeviceGetMemPool);
    CUmemoryPool pool = NULL;
    return get != NULL && get(&pool, device) == CUDA_SUCCESS ? pool : NULL;
}

/* Only where some pool keeps memory does it matter which pool an allocation comes from. */
static CUmemoryPool pool_of_card(int card) {
    __typeof__(&cuDeviceGetCount) count_devices = DRIVER(cuDeviceGetCount);
    int count = 0;
    if (atomic_load_explicit(&keeping_count, memory_order_acquire) == 0 || count_devices == NULL ||
        count_devices(&count) != CUDA_SUCCESS) {
        return NULL;
    }
    for (CUdevice device = 0; device < count; device++) {
        if (vgpu_card_of(device) == card) {
            return current_pool(device);
        }
    }
    return NULL;
}

static CUresult begin(grant_t *grant, uint64_t bytes, CUstream stream) {
    grant->bytes = bytes;
    grant->graph = vgpu_capturing_graph(stream);
    grant->from_idle = grant->graph == NULL && grant->pool != NULL ? use_idle(grant->pool, bytes) : 0;
    CUresult refusal = vgpu_reserve(grant->card, bytes - grant->from_idle, VGPU_USE_DATA);
    if (refusal != CUDA_SUCCESS && grant->from_idle > 0) {
        vgpu_return(grant->card, grant->from_idle, VGPU_USE_DATA);
        reconcile(grant->pool);
    }
    return refusal;
}

static CUresult finish(const grant_t *grant, CUresult result, CUdeviceptr pointer, CUstream stream) {
    bool noted = false;
    if (result == CUDA_SUCCESS && grant->graph != NULL) {
        noted = vgpu_graph_add(grant->graph, grant->card, grant->bytes);
    } else if (result == CUDA_SUCCESS && grant->card >= 0) {
        const book_entry_t entry = {.key = pointer,
                                    .value = grant->bytes,
                                    .pool = (uint64_t)(uintptr_t)grant->pool,
                                    .kind = BOOK_POINTER,
                                    .card = (int16_t)grant->card,
                                    .use = VGPU_USE_DATA};
        noted = vgpu_put_entry(&entry);
    } else {
        noted = result == CUDA_SUCCESS;
    }
    if (!noted) {
        vgpu_return(grant->card, grant->bytes, VGPU_USE_DATA);
        if (result == CUDA_SUCCESS) {
            REAL(cuMemFreeAsync)(pointer, stream);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (grant->pool != NULL && grant->graph == NULL &&
        atomic_load_explicit(&keeping_count, memory_order_acquire) != 0) {
        reconcile(grant->pool);
    }
    return result;
}

/* The default stream of the "_ptsz" functions is the thread's own. */
static CUstream per_thread(CUstream stream) {
    return stream == NULL ? CU_STREAM_PER_THREAD : stream;
}

#define ALLOCATE(card_expression, pool_expression, asked_stream, call)                                                 \
    do {                                                                                                               \
        FORWARD_UNLESS_COUNTING(call)                                                                                  \
        if (dptr == NULL || bytesize == 0) {                                                                           \
            return call;                                                                                               \
        }                                                                                                              \
        uint64_t context = 0;                                                                                          \
        (void)context;                                                                                                 \
        grant_t grant;                                                                                                 \
        grant.card = card_expression;                                                                                  \
        grant.pool = pool_expression;                                                                                  \
        CUresult refusal = begin(&grant, bytesize, asked_stream);                                                      \
        if (refusal != CUDA_SUCCESS) {                                                                                 \
            return refusal;                                                                                            \
        }                                                                                                              \
        CUresult result = call;                                                                                        \
        return finish(&grant, result, *dptr, asked_stream);                                                            \
    } while (0)

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream stream) {
    FETCH_REAL(cuMemAllocAsync)
    ALLOCATE(vgpu_stream_card(stream, &context), pool_of_card(grant.card), stream, real(dptr, bytesize, stream));
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream stream) {
    FETCH_REAL(cuMemAllocAsync_ptsz)
    ALLOCATE(vgpu_stream_card(stream, &context), pool_of_card(grant.card), per_thread(stream),
             real(dptr, bytesize, stream));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream) {
    FETCH_REAL(cuMemAllocFromPoolAsync)
    ALLOCATE(pool_card(pool), pool, stream, real(dptr, bytesize, pool, stream));
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream) {
    FETCH_REAL(cuMemAllocFromPoolAsync_ptsz)
    ALLOCATE(pool_card(pool), pool, per_thread(stream), real(dptr, bytesize, pool, stream));
}

static CUresult freed(const book_entry_t *entry, CUresult result) {
    if (result != CUDA_SUCCESS) {
        vgpu_put_entry(entry);
        return result;
    }
    vgpu_return_entry(entry);
    if (atomic_load_explicit(&keeping_count, memory_order_acquire) != 0) {
        reconcile_all();
    }
    return result;
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream) {
    FETCH_REAL(cuMemFreeAsync)
    FORWARD_UNLESS_MEMBER(real(dptr, stream))
    book_entry_t entry;
    return book_take(BOOK_POINTER, dptr, &entry) ? freed(&entry, real(dptr, stream)) : real(dptr, stream);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream) {
    FETCH_REAL(cuMemFreeAsync_ptsz)
    FORWARD_UNLESS_MEMBER(real(dptr, stream))
    book_entry_t entry;
    return book_take(BOOK_POINTER, dptr, &entry) ? freed(&entry, real(dptr, stream)) : real(dptr, stream);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
    FETCH_REAL(cuMemPoolCreate)
    CUresult result = real(pool, props);
    if (result == CUDA_SUCCESS && props != NULL && vgpu_enter()) {
        bool on_card = props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
        const book_entry_t entry = {.key = (uint64_t)(uintptr_t)*pool,
                                    .kind = BOOK_POOL,
                                    .card = (int16_t)(on_card ? vgpu_card_of(props->location.id) : VGPU_CARD_NONE)};
        vgpu_put_entry(&entry);
    }
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    FETCH_REAL(cuMemPoolDestroy)
    FORWARD_UNLESS_MEMBER(real(pool))
    book_entry_t entry;
    bool known = book_take(BOOK_POOL, (uint64_t)(uintptr_t)pool, &entry);
    CUresult result = real(pool);
    if (result == CUDA_SUCCESS) {
        forget(pool);
    } else if (known) {
        vgpu_put_entry(&entry);
    }
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t min_bytes_to_keep) {
    FETCH_REAL(cuMemPoolTrimTo)
    CUresult result = real(pool, min_bytes_to_keep);
    if (result == CUDA_SUCCESS && vgpu_enter() && atomic_load(&keeping_count) != 0) {
        reconcile(pool);
    }
    return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    FETCH_REAL(cuMemPoolSetAttribute)
    CUresult result = real(pool, attribute, value);
    if (result == CUDA_SUCCESS && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && value != NULL && vgpu_enter()) {
        uint64_t threshold;
        memcpy(&threshold, value, sizeof threshold);
        keep(pool, pool_card(pool), threshold);
        reconcile(pool);
    }
    return result;
}
