/* Allocates and frees without end, on several threads and by several routes: the process that tests kill.
 * usage: churn THREADS SEED */
#include "program.h"

#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

#define SLOTS 32

static unsigned int next(unsigned int *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

struct block {
    CUdeviceptr pointer;
    CUmemGenericAllocationHandle handle;
    int kind;
};

static void let_go(struct block *block) {
    switch (block->kind) {
    case 1:
        cuMemFree_v2(block->pointer);
        break;
    case 2:
        cuMemRelease(block->handle);
        break;
    case 3:
        cuMemFreeAsync(block->pointer, NULL);
        break;
    default:
        break;
    }
    block->kind = 0;
}

static void grab(struct block *block, unsigned int *seed) {
    CUmemAllocationProp props = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    size_t bytes = (1 + next(seed) % 16) * 2 * MIB;
    int kind = 1 + (int)(next(seed) % 3);
    CUresult result = kind == 1   ? cuMemAlloc_v2(&block->pointer, bytes)
                      : kind == 2 ? cuMemCreate(&block->handle, bytes, &props, 0)
                                  : cuMemAllocAsync(&block->pointer, bytes, NULL);
    block->kind = result == CUDA_SUCCESS ? kind : 0;
}

static void *work(void *argument) {
    unsigned int seed = (unsigned int)(uintptr_t)argument;
    struct block blocks[SLOTS] = {0};
    CUcontext context;
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    for (;;) {
        struct block *block = &blocks[next(&seed) % SLOTS];
        let_go(block);
        grab(block, &seed);
    }
    return NULL;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    unsigned int seed = argc > 2 ? (unsigned int)atoi(argv[2]) : 1;
    char *none[] = {argv[0], NULL};
    alarm(300); /* nobody's orphan for ever */
    start(1, none);
    printf("at work\n");
    fflush(stdout);
    for (int i = 1; i < threads; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, (void *)(uintptr_t)(seed + (unsigned int)i * 7919u));
    }
    work((void *)(uintptr_t)seed);
    return 0;
}
