/* Addresses and the table of live blocks of this process. Freed addresses are handed out again at once, the last one
 * first: a book-keeper that is a moment late with a free then meets the same address twice. */
#include "driver.h"

#include <stdlib.h>
#include <sys/mman.h>

#define BUCKETS   65536
#define CLASSES   64
#define HIGH_BASE 0x7f0000000000ULL
#define LOW_BASE  0x10000000ULL

struct hole {
    CUdeviceptr at;
    struct hole *next;
};

static struct fake_block *buckets[BUCKETS];
static struct hole *holes[2][CLASSES];
static CUdeviceptr next_address[2] = {HIGH_BASE, LOW_BASE};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

size_t fake_round_up(size_t bytes, size_t granule) {
    return (bytes + granule - 1) / granule * granule;
}

static int class_of(size_t bytes) {
    int class = 9; /* the driver aligns to 512 bytes at most by promise */
    while (((size_t)1 << class) < bytes) {
        class++;
    }
    return class;
}

CUdeviceptr fake_address(size_t bytes, bool low, size_t *span) {
    int class = class_of(bytes);
    *span = (size_t)1 << class;
    pthread_mutex_lock(&lock);
    CUdeviceptr at;
    struct hole *hole = holes[low][class];
    if (hole != NULL) {
        holes[low][class] = hole->next;
        at = hole->at;
        free(hole);
    } else {
        at = next_address[low];
        next_address[low] += *span;
    }
    pthread_mutex_unlock(&lock);
    return at;
}

void fake_address_back(CUdeviceptr at, size_t span) {
    struct hole *hole = malloc(sizeof *hole);
    bool low = at < 0x100000000ULL;
    hole->at = at;
    pthread_mutex_lock(&lock);
    hole->next = holes[low][class_of(span)];
    holes[low][class_of(span)] = hole;
    pthread_mutex_unlock(&lock);
}

static struct fake_block **bucket_of(CUdeviceptr at) {
    return &buckets[(at >> 9) * 0x9e3779b97f4a7c15ULL >> 48];
}

static void enter_table(struct fake_block *block) {
    pthread_mutex_lock(&lock);
    struct fake_block **bucket = bucket_of(block->at);
    block->next = *bucket;
    *bucket = block;
    pthread_mutex_unlock(&lock);
}

static CUresult block_new(CUdeviceptr *at, const struct fake_block *like, bool low) {
    struct fake_block *block = malloc(sizeof *block);
    *block = *like;
    if (like->kind == FAKE_MANAGED || like->kind == FAKE_SPILLED) {
        void *memory =
            mmap(NULL, block->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        block->at = (CUdeviceptr)(uintptr_t)memory;
        block->span = block->bytes;
    } else if (block->at == 0) {
        block->at = fake_address(block->bytes, low, &block->span);
    }
    enter_table(block);
    *at = block->at;
    return CUDA_SUCCESS;
}

static CUresult charged_block(CUdeviceptr *at, size_t bytes, enum fake_kind kind, CUcontext context, CUmemoryPool pool,
                              bool low) {
    if (bytes == 0 || at == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct fake_block like = {.bytes = bytes,
                              .kind = kind,
                              .machine = pool != NULL ? pool->machine : context->machine,
                              .context = context,
                              .pool = pool};
    if (kind == FAKE_POOLED) {
        CUresult result = fake_pool_take(pool, bytes);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        like.context = NULL;
    } else if (!fake_take(like.machine, bytes)) {
        if (kind != FAKE_MANAGED) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        like.kind = FAKE_SPILLED;
    }
    return block_new(at, &like, low);
}

CUresult fake_block_new(CUdeviceptr *at, size_t bytes, enum fake_kind kind, CUcontext context, CUmemoryPool pool) {
    return charged_block(at, bytes, kind, context, pool, false);
}

CUresult fake_block_new_low(CUdeviceptr *at, size_t bytes, CUcontext context) {
    return charged_block(at, bytes, FAKE_PLAIN, context, NULL, true);
}

CUresult fake_block_borrowed(CUdeviceptr at, size_t bytes, CUcontext context) {
    struct fake_block like = {.at = at, .bytes = bytes, .kind = FAKE_BORROWED, .context = context};
    like.machine = context != NULL ? context->machine : 0;
    return block_new(&at, &like, false);
}

struct fake_block *fake_block_take(CUdeviceptr at) {
    pthread_mutex_lock(&lock);
    struct fake_block **link = bucket_of(at);
    while (*link != NULL && (*link)->at != at) {
        link = &(*link)->next;
    }
    struct fake_block *block = *link;
    if (block != NULL) {
        *link = block->next;
    }
    pthread_mutex_unlock(&lock);
    return block;
}

bool fake_block_find(CUdeviceptr at, struct fake_block *copy) {
    pthread_mutex_lock(&lock);
    struct fake_block *block = *bucket_of(at);
    while (block != NULL && block->at != at) {
        block = block->next;
    }
    if (block != NULL) {
        *copy = *block;
    }
    pthread_mutex_unlock(&lock);
    return block != NULL;
}

void fake_block_drop(struct fake_block *block) {
    if (block->kind == FAKE_MANAGED || block->kind == FAKE_SPILLED) {
        munmap((void *)(uintptr_t)block->at, block->bytes);
    } else if (block->span != 0) {
        fake_address_back(block->at, block->span);
    }
    if (block->kind == FAKE_PLAIN || block->kind == FAKE_MANAGED) {
        fake_give(block->machine, block->bytes);
    } else if (block->kind == FAKE_POOLED) {
        fake_pool_give(block->pool, block->bytes);
    }
    free(block);
}

void fake_blocks_of_context_drop(CUcontext context) {
    for (size_t i = 0; i < BUCKETS; i++) {
        for (;;) {
            pthread_mutex_lock(&lock);
            struct fake_block **link = &buckets[i];
            while (*link != NULL && (*link)->context != context) {
                link = &(*link)->next;
            }
            struct fake_block *block = *link;
            if (block != NULL) {
                *link = block->next;
            }
            pthread_mutex_unlock(&lock);
            if (block == NULL) {
                break;
            }
            fake_block_drop(block);
        }
    }
}
