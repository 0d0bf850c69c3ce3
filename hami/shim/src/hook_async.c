/* Stream-ordered allocations and memory pools. */
#include <stdint.h>

#include "graph.h"
#include "hook.h"
#include "pools.h"

typedef struct {
    int card;
    CUmemoryPool pool;
    CUgraph graph; /* the stream captures into it: the allocation becomes a node */
    uint64_t bytes;
    uint64_t from_idle;
} grant_t;

/* The pool that cuMemAllocAsync takes from. */
static CUmemoryPool current_pool(int card) {
    __typeof__(&cuDeviceGetMemPool) get = DRIVER(cuDeviceGetMemPool);
    CUmemoryPool pool = NULL;
    CUdevice device = vgpu_device_of(card);
    return device >= 0 && get != NULL && get(&pool, device) == CUDA_SUCCESS ? pool : NULL;
}

static CUresult begin(grant_t *grant, uint64_t bytes, CUstream stream) {
    grant->bytes = bytes;
    grant->from_idle = 0;
    grant->graph = vgpu_capturing_graph(stream);
    if (grant->graph != NULL) {
        return vgpu_graph_reserve(grant->graph, grant->card, bytes);
    }
    if (grant->pool != NULL) {
        vgpu_pool_watch(grant->pool, grant->card);
        grant->from_idle = vgpu_pool_use_idle(grant->pool, bytes);
    }
    CUresult refusal = vgpu_reserve(grant->card, bytes - grant->from_idle, VGPU_USE_DATA);
    if (refusal != CUDA_SUCCESS && grant->from_idle > 0) {
        vgpu_return(grant->card, grant->from_idle, VGPU_USE_DATA);
        vgpu_pool_settle(grant->pool);
    }
    return refusal;
}

static CUresult finish_captured(const grant_t *grant, CUresult result, CUdeviceptr pointer) {
    vgpu_graph_finish(grant->graph, grant->card, grant->bytes, result == CUDA_SUCCESS ? pointer : 0);
    return result;
}

static bool note(const grant_t *grant, CUdeviceptr pointer) {
    const book_entry_t entry = {.key = pointer,
                                .value = grant->bytes,
                                .pool = (uint64_t)(uintptr_t)grant->pool,
                                .kind = BOOK_POINTER,
                                .card = (int16_t)grant->card,
                                .use = VGPU_USE_DATA};
    return grant->card < 0 || vgpu_put_entry(&entry);
}

static CUresult finish(const grant_t *grant, CUresult result, CUdeviceptr pointer, CUstream stream) {
    if (grant->graph != NULL) {
        return finish_captured(grant, result, pointer);
    }
    bool noted = result == CUDA_SUCCESS && note(grant, pointer);
    if (result == CUDA_SUCCESS && !noted) {
        REAL(cuMemFreeAsync)(pointer, stream);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (grant->pool != NULL) {
        vgpu_pool_settle(grant->pool);
    }
    if (!noted) {
        vgpu_return(grant->card, grant->bytes, VGPU_USE_DATA);
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
    ALLOCATE(vgpu_stream_card(stream, &context), current_pool(grant.card), stream, real(dptr, bytesize, stream));
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream stream) {
    FETCH_REAL(cuMemAllocAsync_ptsz)
    ALLOCATE(vgpu_stream_card(stream, &context), current_pool(grant.card), per_thread(stream),
             real(dptr, bytesize, stream));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream) {
    FETCH_REAL(cuMemAllocFromPoolAsync)
    ALLOCATE(vgpu_pool_card(pool), pool, stream, real(dptr, bytesize, pool, stream));
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream) {
    FETCH_REAL(cuMemAllocFromPoolAsync_ptsz)
    ALLOCATE(vgpu_pool_card(pool), pool, per_thread(stream), real(dptr, bytesize, pool, stream));
}

#define FREE(asked_stream)                                                                                             \
    FORWARD_UNLESS_MEMBER(real(dptr, stream))                                                                          \
    CUgraph graph = vgpu_capturing_graph(asked_stream);                                                                \
    if (graph != NULL) {                                                                                               \
        CUresult result = real(dptr, stream);                                                                          \
        vgpu_graph_freed(dptr, result);                                                                                \
        return result;                                                                                                 \
    }                                                                                                                  \
    FREE_NOTED(BOOK_POINTER, dptr, real(dptr, stream));

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream){FETCH_REAL(cuMemFreeAsync) FREE(stream)}

CUresult
    cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream){FETCH_REAL(cuMemFreeAsync_ptsz) FREE(per_thread(stream))}

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
        vgpu_pool_forget(pool);
    } else if (known) {
        vgpu_put_entry(&entry);
    }
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t min_bytes_to_keep) {
    FETCH_REAL(cuMemPoolTrimTo)
    CUresult result = real(pool, min_bytes_to_keep);
    if (result == CUDA_SUCCESS && vgpu_enter()) {
        vgpu_pool_settle(pool);
    }
    return result;
}

/* Pools give back what they do not keep when the program waits for the card. */
static CUresult synchronized(CUresult result) {
    if (vgpu_enter()) {
        vgpu_pools_settle();
    }
    return result;
}

CUresult cuStreamSynchronize(CUstream stream) {
    FETCH_REAL(cuStreamSynchronize)
    return synchronized(real(stream));
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    FETCH_REAL(cuStreamSynchronize_ptsz)
    return synchronized(real(stream));
}

CUresult cuCtxSynchronize(void) {
    FETCH_REAL(cuCtxSynchronize)
    return synchronized(real());
}

CUresult cuCtxSynchronize_v2(CUcontext ctx) {
    FETCH_REAL(cuCtxSynchronize_v2)
    return synchronized(real(ctx));
}

CUresult cuEventSynchronize(CUevent event) {
    FETCH_REAL(cuEventSynchronize)
    return synchronized(real(event));
}
