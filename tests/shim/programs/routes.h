/* Every way in which a program can come to hold device memory, behind one shape. */
#ifndef SHIM_ROUTES_H
#define SHIM_ROUTES_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda_min.h"

struct held {
    size_t bytes;
    CUdeviceptr pointer;
    CUdeviceptr_v1 low;
    void *host;
    CUmemoryPool pool;
    CUmemGenericAllocationHandle handle;
    CUmemGenericAllocationHandle second;
    CUarray array;
    CUmipmappedArray mipmap;
    CUexternalMemory external;
    CUcontext context;
    CUgreenCtx green;
    CUmodule module;
    CUlibrary library;
    CUgraph graph;
    CUgraphExec exec;
    CUstream stream;
    int fd;
};

struct route {
    const char *name;
    bool charged;         /* the share must shrink by exactly what the card gave */
    const char *needs[3]; /* symbols without which the driver is too old for the route */
    CUresult (*take)(struct held *held);
    CUresult (*give)(struct held *held);
};

extern const struct route routes[];
extern const size_t route_count;

#endif
