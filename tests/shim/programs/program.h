/* What the small programs share. Each is linked to libcuda.so.1 by name, as a program built with -lcuda is. */
#ifndef SHIM_PROGRAM_H
#define SHIM_PROGRAM_H

#include "cuda_min.h"

#include <stdio.h>
#include <stdlib.h>

#define MIB ((size_t)1024 * 1024)

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        CUresult result_ = (call);                                                                                     \
        if (result_ != CUDA_SUCCESS) {                                                                                 \
            printf("%s -> %d\n", #call, result_);                                                                      \
            exit(result_ == CUDA_ERROR_OUT_OF_MEMORY ? 2 : 1);                                                         \
        }                                                                                                              \
    } while (0)

/* Context on device 0; the size to ask for in bytes: the first argument in MiB, else 64. */
static inline size_t start(int argc, char **argv) {
    CUcontext context;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    return (argc > 1 ? strtoull(argv[1], NULL, 10) : 64) * MIB;
}

static inline void show(const char *when) {
    size_t free_bytes = 0;
    size_t total = 0;
    CHECK(cuMemGetInfo_v2(&free_bytes, &total));
    printf("%s used=%zu total=%zu\n", when, total - free_bytes, total);
    fflush(stdout);
}

#endif
