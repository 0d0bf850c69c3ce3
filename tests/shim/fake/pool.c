/* Stream-ordered memory of the stand-in driver: pools keep what was freed until the next synchronisation. */
#include "driver.h"

#include <stdlib.h>

static struct CUmemPoolHandle_st defaults[FAKE_MAX_CARDS];
static CUmemoryPool current[FAKE_MAX_CARDS];
static CUmemoryPool pools;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static CUmemoryPool default_of(int machine) {
    defaults[machine].machine = machine;
    defaults[machine].is_default = true;
    return &defaults[machine];
}

CUmemoryPool fake_pool_current(int machine) {
    return current[machine] != NULL ? current[machine] : default_of(machine);
}

CUresult fake_pool_take(CUmemoryPool pool, size_t bytes) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (pool->max_bytes != 0 && pool->used + bytes > pool->max_bytes) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (pool->used + bytes > pool->reserved) {
        size_t growth = fake_round_up(pool->used + bytes - pool->reserved, FAKE_GRANULE);
        if (fake_take(pool->machine, growth)) {
            pool->reserved += growth;
            pool->reserved_high = pool->reserved > pool->reserved_high ? pool->reserved : pool->reserved_high;
        } else {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (result == CUDA_SUCCESS) {
        pool->used += bytes;
        pool->used_high = pool->used > pool->used_high ? pool->used : pool->used_high;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* Called with the lock held. */
static void shrink(CUmemoryPool pool, uint64_t keep) {
    uint64_t needed = fake_round_up(pool->used, FAKE_GRANULE);
    uint64_t target = keep > needed ? keep : needed;
    if (pool->reserved > target) {
        fake_give(pool->machine, pool->reserved - target);
        pool->reserved = target;
    }
}

void fake_pool_give(CUmemoryPool pool, size_t bytes) {
    pthread_mutex_lock(&lock);
    pool->used -= bytes;
    pthread_mutex_unlock(&lock);
}

void fake_pools_settle(void) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < FAKE_MAX_CARDS; i++) {
        shrink(&defaults[i], defaults[i].threshold);
    }
    for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next) {
        shrink(pool, pool->threshold);
    }
    pthread_mutex_unlock(&lock);
}

static CUresult allocate(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream) {
    CUcontext context;
    CUresult result = fake_stream_context(stream, &context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pool = pool != NULL ? pool : fake_pool_current(context->machine);
    CUgraph capture = fake_capture_of(stream);
    if (capture != NULL) {
        return fake_graph_add_alloc(capture, bytes, pool->machine, dptr);
    }
    return fake_block_new(dptr, bytes, FAKE_POOLED, context, pool);
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream stream) {
    FAKE_ENTER("cuMemAllocAsync");
    return allocate(dptr, bytesize, NULL, stream);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream stream) {
    FAKE_ENTER("cuMemAllocAsync_ptsz");
    return allocate(dptr, bytesize, NULL, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream) {
    FAKE_ENTER("cuMemAllocFromPoolAsync");
    return pool == NULL ? CUDA_ERROR_INVALID_VALUE : allocate(dptr, bytesize, pool, stream);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream) {
    FAKE_ENTER("cuMemAllocFromPoolAsync_ptsz");
    return pool == NULL ? CUDA_ERROR_INVALID_VALUE : allocate(dptr, bytesize, pool, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream) {
    FAKE_ENTER("cuMemFreeAsync");
    CUgraph capture = fake_capture_of(stream);
    if (capture != NULL) {
        return fake_graph_add_free(capture, dptr);
    }
    struct fake_block *block = fake_block_take(dptr);
    if (block == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    fake_block_drop(block);
    return CUDA_SUCCESS;
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream) {
    FAKE_ENTER("cuMemFreeAsync_ptsz");
    return cuMemFreeAsync(dptr, stream);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
    FAKE_ENTER("cuMemPoolCreate");
    int machine;
    CUresult result = fake_machine_of(props->location.id, &machine);
    if (result != CUDA_SUCCESS || props->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_NOT_SUPPORTED;
    }
    CUmemoryPool made = calloc(1, sizeof *made);
    made->machine = machine;
    made->max_bytes = props->maxSize;
    pthread_mutex_lock(&lock);
    made->next = pools;
    pools = made;
    pthread_mutex_unlock(&lock);
    *pool = made;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    FAKE_ENTER("cuMemPoolDestroy");
    pthread_mutex_lock(&lock);
    CUmemoryPool *link = &pools;
    while (*link != NULL && *link != pool) {
        link = &(*link)->next;
    }
    CUresult result = *link == NULL || pool->used != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        *link = pool->next;
        shrink(pool, 0);
        if (current[pool->machine] == pool) {
            current[pool->machine] = NULL;
        }
        free(pool);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t min_bytes_to_keep) {
    FAKE_ENTER("cuMemPoolTrimTo");
    pthread_mutex_lock(&lock);
    shrink(pool, min_bytes_to_keep);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    pthread_mutex_lock(&lock);
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
        pool->threshold = *(uint64_t *)value;
    } else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) {
        pool->reserved_high = pool->reserved;
    } else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) {
        pool->used_high = pool->used;
    }
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    FAKE_ENTER("cuMemPoolGetAttribute");
    const uint64_t values[] = {[CU_MEMPOOL_ATTR_RELEASE_THRESHOLD] = pool->threshold,
                               [CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT] = pool->reserved,
                               [CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH] = pool->reserved_high,
                               [CU_MEMPOOL_ATTR_USED_MEM_CURRENT] = pool->used,
                               [CU_MEMPOOL_ATTR_USED_MEM_HIGH] = pool->used_high};
    if (attribute >= CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && attribute <= CU_MEMPOOL_ATTR_USED_MEM_HIGH) {
        *(uint64_t *)value = values[attribute];
    } else {
        *(int *)value = 1;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool pool, int type, unsigned long long flags) {
    (void)handle, (void)pool, (void)type, (void)flags;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, int type, unsigned long long flags) {
    (void)handle, (void)pool, (void)type, (void)flags;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr ptr) {
    (void)data, (void)ptr;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *ptr, CUmemoryPool pool, CUmemPoolPtrExportData *data) {
    (void)ptr, (void)pool, (void)data;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev) {
    int machine;
    CUresult result = fake_machine_of(dev, &machine);
    if (result == CUDA_SUCCESS) {
        *pool = default_of(machine);
    }
    return result;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev) {
    int machine;
    CUresult result = fake_machine_of(dev, &machine);
    if (result == CUDA_SUCCESS) {
        *pool = fake_pool_current(machine);
    }
    return result;
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
    int machine;
    CUresult result = fake_machine_of(dev, &machine);
    if (result == CUDA_SUCCESS) {
        current[machine] = pool;
    }
    return result;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type) {
    (void)type;
    return cuDeviceGetDefaultMemPool(pool, location->id);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type) {
    (void)type;
    return cuDeviceGetMemPool(pool, location->id);
}

CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool) {
    (void)type;
    return cuDeviceSetMemPool(location->id, pool);
}
