/* Plain, pitched and managed allocations, and their free. Host memory is not device memory and is not looked at. */
#include <stdint.h>

#include "config.h"
#include "hook.h"

#define MEM_ATTACH_GLOBAL 1

typedef struct {
    int card;
    uint64_t context;
    uint64_t bytes;
} grant_t;

static CUresult begin(grant_t *grant, uint64_t bytes) {
    grant->context = 0;
    grant->card = vgpu_current_card(&grant->context);
    grant->bytes = bytes;
    return vgpu_reserve(grant->card, bytes, VGPU_USE_DATA);
}

static CUresult undo(const grant_t *grant, CUdeviceptr pointer) {
    __typeof__(&cuMemFree_v2) release = REAL(cuMemFree_v2);
    if (release != NULL) {
        release(pointer);
    }
    vgpu_return(grant->card, grant->bytes, VGPU_USE_DATA);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult finish(const grant_t *grant, CUresult result, CUdeviceptr pointer) {
    if (result != CUDA_SUCCESS) {
        vgpu_return(grant->card, grant->bytes, VGPU_USE_DATA);
        return result;
    }
    if (!vgpu_note(BOOK_POINTER, pointer, grant->bytes, grant->context, grant->card, VGPU_USE_DATA)) {
        return undo(grant, pointer);
    }
    return CUDA_SUCCESS;
}

/* With oversubscription the share may be larger than the card: what does not fit physically becomes managed memory. */
static CUresult spill(CUresult result, CUdeviceptr *pointer, size_t bytes) {
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !vgpu_config()->oversubscribe) {
        return result;
    }
    __typeof__(&cuMemAllocManaged) managed = REAL(cuMemAllocManaged);
    return managed == NULL ? result : managed(pointer, bytes, MEM_ATTACH_GLOBAL);
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize) {
    FETCH_REAL(cuMemAlloc_v2)
    FORWARD_UNLESS_COUNTING(real(dptr, bytesize))
    if (dptr == NULL || bytesize == 0) {
        return real(dptr, bytesize); /* some programs probe the driver this way */
    }
    grant_t grant;
    CUresult refusal = begin(&grant, bytesize);
    if (refusal != CUDA_SUCCESS) {
        return refusal;
    }
    CUresult result = spill(real(dptr, bytesize), dptr, bytesize);
    return finish(&grant, result, *dptr);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize) {
    FETCH_REAL(cuMemAlloc)
    FORWARD_UNLESS_COUNTING(real(dptr, bytesize))
    if (dptr == NULL || bytesize == 0) {
        return real(dptr, bytesize);
    }
    grant_t grant;
    CUresult refusal = begin(&grant, bytesize);
    if (refusal != CUDA_SUCCESS) {
        return refusal;
    }
    CUresult result = real(dptr, bytesize);
    return finish(&grant, result, *dptr);
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
    FETCH_REAL(cuMemAllocManaged)
    FORWARD_UNLESS_COUNTING(real(dptr, bytesize, flags))
    if (dptr == NULL || bytesize == 0) {
        return real(dptr, bytesize, flags);
    }
    grant_t grant;
    CUresult refusal = begin(&grant, bytesize);
    if (refusal != CUDA_SUCCESS) {
        return refusal;
    }
    CUresult result = real(dptr, bytesize, flags);
    return finish(&grant, result, *dptr);
}

/* The pitch is the driver's choice: reserve the least it can be, and the rest when it is known. */
static CUresult finish_pitch(grant_t *grant, CUresult result, CUdeviceptr pointer, uint64_t pitch, uint64_t height) {
    if (result == CUDA_SUCCESS && pitch * height > grant->bytes) {
        uint64_t rest = pitch * height - grant->bytes;
        if (vgpu_reserve(grant->card, rest, VGPU_USE_DATA) != CUDA_SUCCESS) {
            return undo(grant, pointer);
        }
        grant->bytes += rest;
    }
    return finish(grant, result, pointer);
}

static CUresult begin_pitch(grant_t *grant, uint64_t width, uint64_t height) {
    uint64_t bytes;
    if (__builtin_mul_overflow(width, height, &bytes)) {
        bytes = UINT64_MAX;
    }
    return begin(grant, bytes);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width_bytes, size_t height,
                            unsigned int element_bytes) {
    FETCH_REAL(cuMemAllocPitch_v2)
    FORWARD_UNLESS_COUNTING(real(dptr, pitch, width_bytes, height, element_bytes))
    if (dptr == NULL || pitch == NULL || width_bytes == 0 || height == 0) {
        return real(dptr, pitch, width_bytes, height, element_bytes);
    }
    grant_t grant;
    CUresult refusal = begin_pitch(&grant, width_bytes, height);
    if (refusal != CUDA_SUCCESS) {
        return refusal;
    }
    CUresult result = real(dptr, pitch, width_bytes, height, element_bytes);
    return finish_pitch(&grant, result, *dptr, *pitch, height);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pitch, unsigned int width_bytes, unsigned int height,
                         unsigned int element_bytes) {
    FETCH_REAL(cuMemAllocPitch)
    FORWARD_UNLESS_COUNTING(real(dptr, pitch, width_bytes, height, element_bytes))
    if (dptr == NULL || pitch == NULL || width_bytes == 0 || height == 0) {
        return real(dptr, pitch, width_bytes, height, element_bytes);
    }
    grant_t grant;
    CUresult refusal = begin_pitch(&grant, width_bytes, height);
    if (refusal != CUDA_SUCCESS) {
        return refusal;
    }
    CUresult result = real(dptr, pitch, width_bytes, height, element_bytes);
    return finish_pitch(&grant, result, *dptr, *pitch, height);
}

CUresult cuMemFree_v2(CUdeviceptr dptr) {
    FETCH_REAL(cuMemFree_v2)
    FORWARD_UNLESS_MEMBER(real(dptr))
    FREE_NOTED(BOOK_POINTER, dptr, real(dptr));
}

CUresult cuMemFree(CUdeviceptr_v1 dptr) {
    FETCH_REAL(cuMemFree)
    FORWARD_UNLESS_MEMBER(real(dptr))
    FREE_NOTED(BOOK_POINTER, dptr, real(dptr));
}
