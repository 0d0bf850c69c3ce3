/* What the parts of the stand-in libcuda.so.1 share: contexts, blocks of memory, pools. */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include "card.h"
#include "cuda_min.h"
#include "fake_cuda.h"

#include <pthread.h>

#define FAKE_GRANULE (2 * FAKE_MIB)

struct CUctx_st {
    CUdevice device;
    int machine; /* machine-wide index of the card */
    bool primary;
    struct CUctx_st *next;
};

enum fake_kind {
    FAKE_PLAIN,    /* cuMemAlloc, pitch: bytes taken on the card */
    FAKE_MANAGED,  /* the same, and the address can be written by the host */
    FAKE_SPILLED,  /* managed memory that the card had no room for: it lies in host memory */
    FAKE_POOLED,   /* the pool took the bytes */
    FAKE_BORROWED, /* IPC, external or graph memory: somebody else took the bytes */
    FAKE_HOST      /* pinned host memory */
};

struct fake_block {
    CUdeviceptr at;
    size_t bytes;
    size_t span; /* address space taken: a power of two */
    enum fake_kind kind;
    int machine;
    CUcontext context;
    CUmemoryPool pool;
    struct fake_block *next;
};

struct CUmemPoolHandle_st {
    int machine;
    bool is_default;
    uint64_t used, used_high, reserved, reserved_high, threshold, max_bytes;
    struct CUmemPoolHandle_st *next;
};

struct CUstream_st {
    CUcontext context;
    CUgraph capture;
};

extern pthread_mutex_t fake_lock;

/* CUDA_ERROR_NOT_INITIALIZED before cuInit and in the child of an initialised process, else success. */
CUresult fake_ready(void);
/* The calling thread's context; CUDA_ERROR_INVALID_CONTEXT where it has none. */
CUresult fake_context(CUcontext *context);
CUresult fake_machine_of(CUdevice device, int *machine);
size_t fake_round_up(size_t bytes, size_t granule);
/* A context of a stream: the stream's own, else the thread's. */
CUresult fake_stream_context(CUstream stream, CUcontext *context);
CUgraph fake_capture_of(CUstream stream);

/* Address space; low: addresses that fit the 32-bit pointers of the first interface. */
CUdeviceptr fake_address(size_t bytes, bool low, size_t *span);
void fake_address_back(CUdeviceptr at, size_t span);

/* Takes bytes on the card and gives them an address. `charged` may differ from `bytes` (pitch, granule). */
CUresult fake_block_new(CUdeviceptr *at, size_t bytes, enum fake_kind kind, CUcontext context, CUmemoryPool pool);
CUresult fake_block_new_low(CUdeviceptr *at, size_t bytes, CUcontext context);
CUresult fake_block_borrowed(CUdeviceptr at, size_t bytes, CUcontext context);
/* Takes the block at this very address out of the table; NULL when there is none. */
struct fake_block *fake_block_take(CUdeviceptr at);
bool fake_block_find(CUdeviceptr at, struct fake_block *copy);
void fake_block_drop(struct fake_block *block);
/* Everything that was allocated in a context goes with it. */
void fake_blocks_of_context_drop(CUcontext context);
void fake_arrays_of_context_drop(CUcontext context);

CUmemoryPool fake_pool_current(int machine);
CUresult fake_pool_take(CUmemoryPool pool, size_t bytes);
void fake_pool_give(CUmemoryPool pool, size_t bytes);
/* What a synchronisation does: pools shrink to their release threshold. */
void fake_pools_settle(void);

CUresult fake_graph_add_alloc(CUgraph graph, size_t bytes, int machine, CUdeviceptr *at);
CUresult fake_graph_add_free(CUgraph graph, CUdeviceptr at);

#endif
