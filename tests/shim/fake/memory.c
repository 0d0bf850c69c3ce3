/* Plain, pitched, managed and pinned memory of the stand-in driver. */
#include "driver.h"

#include <stdlib.h>
#include <sys/mman.h>

#define PITCH_ALIGNMENT 512

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    FAKE_ENTER("cuMemGetInfo_v2");
    CUcontext context;
    CUresult result = fake_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    size_t whole;
    result = cuDeviceTotalMem_v2(&whole, context->device);
    if (free_bytes != NULL) {
        *free_bytes = fake_room(context->machine);
    }
    if (total != NULL) {
        *total = whole;
    }
    return result;
}

CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total) {
    size_t wide_free = 0;
    size_t wide_total = 0;
    CUresult result = cuMemGetInfo_v2(&wide_free, &wide_total);
    *free_bytes = wide_free > UINT32_MAX ? UINT32_MAX : (unsigned int)wide_free;
    *total = wide_total > UINT32_MAX ? UINT32_MAX : (unsigned int)wide_total;
    return result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize) {
    FAKE_ENTER("cuMemAlloc_v2");
    CUcontext context;
    CUresult result = fake_context(&context);
    return result != CUDA_SUCCESS ? result : fake_block_new(dptr, bytesize, FAKE_PLAIN, context, NULL);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize) {
    FAKE_ENTER("cuMemAlloc");
    CUcontext context;
    CUdeviceptr wide = 0;
    CUresult result = fake_context(&context);
    if (result == CUDA_SUCCESS) {
        result = fake_block_new_low(&wide, bytesize, context);
    }
    if (result == CUDA_SUCCESS) {
        *dptr = (CUdeviceptr_v1)wide;
    }
    return result;
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
    FAKE_ENTER("cuMemAllocManaged");
    CUcontext context;
    CUresult result = fake_context(&context);
    if (result == CUDA_SUCCESS && flags != 1 && flags != 2) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    return result != CUDA_SUCCESS ? result : fake_block_new(dptr, bytesize, FAKE_MANAGED, context, NULL);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width_bytes, size_t height,
                            unsigned int element_bytes) {
    FAKE_ENTER("cuMemAllocPitch_v2");
    CUcontext context;
    CUresult result = fake_context(&context);
    if (result == CUDA_SUCCESS && element_bytes != 4 && element_bytes != 8 && element_bytes != 16) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        size_t row = fake_round_up(width_bytes, PITCH_ALIGNMENT);
        result = fake_block_new(dptr, row * height, FAKE_PLAIN, context, NULL);
        *pitch = row;
    }
    return result;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pitch, unsigned int width_bytes, unsigned int height,
                         unsigned int element_bytes) {
    FAKE_ENTER("cuMemAllocPitch");
    (void)element_bytes;
    size_t row = fake_round_up(width_bytes, PITCH_ALIGNMENT);
    CUresult result = cuMemAlloc(dptr, (unsigned int)(row * height));
    *pitch = (unsigned int)row;
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr dptr) {
    FAKE_ENTER("cuMemFree_v2");
    if (fake_ready() != CUDA_SUCCESS) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (dptr == 0) {
        return CUDA_SUCCESS;
    }
    struct fake_block *block = fake_block_take(dptr);
    if (block == NULL || block->kind == FAKE_HOST) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    fake_block_drop(block);
    return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr_v1 dptr) {
    FAKE_ENTER("cuMemFree");
    return cuMemFree_v2(dptr);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr dptr) {
    struct fake_block block;
    if (!fake_block_find(dptr, &block)) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (base != NULL) {
        *base = block.at;
    }
    if (size != NULL) {
        *size = block.bytes;
    }
    return CUDA_SUCCESS;
}

/* Attributes: 2 memory type, 8 is managed, 9 device ordinal. */
CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr ptr) {
    struct fake_block block;
    if (!fake_block_find(ptr, &block)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (attribute == 8) {
        *(unsigned int *)data = block.kind == FAKE_MANAGED || block.kind == FAKE_SPILLED;
        return CUDA_SUCCESS;
    }
    *(int *)data = attribute == 2 ? 2 : block.context != NULL ? block.context->device : 0;
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int flags) {
    FAKE_ENTER("cuMemHostAlloc");
    (void)flags;
    CUcontext context;
    CUresult result = fake_context(&context);
    if (result != CUDA_SUCCESS || bytesize == 0) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    *pp = mmap(NULL, bytesize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*pp == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return fake_block_borrowed((CUdeviceptr)(uintptr_t)*pp, bytesize, NULL);
}

CUresult cuMemAllocHost_v2(void **pp, size_t bytesize) {
    FAKE_ENTER("cuMemAllocHost_v2");
    return cuMemHostAlloc(pp, bytesize, 0);
}

CUresult cuMemAllocHost(void **pp, unsigned int bytesize) {
    return cuMemHostAlloc(pp, bytesize, 0);
}

CUresult cuMemFreeHost(void *p) {
    struct fake_block *block = fake_block_take((CUdeviceptr)(uintptr_t)p);
    if (block == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    munmap(p, block->bytes);
    free(block);
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pointer, void *host, unsigned int flags) {
    (void)flags;
    *pointer = (CUdeviceptr)(uintptr_t)host;
    return fake_ready();
}

CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int flags) {
    FAKE_ENTER("cuMemHostRegister_v2");
    (void)flags;
    return p == NULL || bytesize == 0 ? CUDA_ERROR_INVALID_VALUE : fake_ready();
}

CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int flags) {
    return cuMemHostRegister_v2(p, bytesize, flags);
}

CUresult cuMemHostUnregister(void *p) {
    return p == NULL ? CUDA_ERROR_INVALID_VALUE : fake_ready();
}

uint64_t fakeCardUsed(CUdevice device) {
    int machine;
    return fake_machine_of(device, &machine) == CUDA_SUCCESS ? fake_used(machine) : 0;
}

uint64_t fakeCardUsedByMe(CUdevice device) {
    int machine;
    return fake_machine_of(device, &machine) == CUDA_SUCCESS ? fake_used_by_me(machine) : 0;
}

uint64_t fakeCallsOf(const char *function) {
    return fake_calls(function);
}
