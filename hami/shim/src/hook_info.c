/* cuInit, cuGetProcAddress, and what a program is told about the size of a card. */
#include <stdint.h>

#include "config.h"
#include "hook.h"
#include "log.h"
#include "lookup.h"

CUresult cuInit(unsigned int flags) {
    FETCH_REAL(cuInit)
    CUresult result = real(flags);
    if (result != CUDA_SUCCESS) {
        return result; /* no device is a normal answer: nothing to say, nothing to limit */
    }
    return vgpu_enter() || !vgpu_closed() ? CUDA_SUCCESS : vgpu_closed_error();
}

/* The driver decides which signature the caller gets; we only replace that very function by its hook. */
CUresult cuGetProcAddress(const char *symbol, void **pfn, int cuda_version, uint64_t flags) {
    FETCH_REAL(cuGetProcAddress)
    CUresult result = real(symbol, pfn, cuda_version, flags);
    if (result == CUDA_SUCCESS && symbol != NULL && pfn != NULL) {
        *pfn = vgpu_lookup_answer(symbol, *pfn, cuda_version, flags);
    }
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cuda_version, uint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    FETCH_REAL(cuGetProcAddress_v2)
    CUresult result = real(symbol, pfn, cuda_version, flags, status);
    if (result == CUDA_SUCCESS && symbol != NULL && pfn != NULL) {
        *pfn = vgpu_lookup_answer(symbol, *pfn, cuda_version, flags);
    }
    return result;
}

/* With oversubscription a share may exceed the card, and is shown as it is. */
static uint64_t shown_total(uint64_t limit, uint64_t physical) {
    return limit < physical || vgpu_config()->oversubscribe ? limit : physical;
}

static void show_share(int card, uint64_t *free_bytes, uint64_t *total) {
    uint64_t limit = card >= 0 ? vgpu_account_limit(card) : 0;
    if (limit == 0) {
        return;
    }
    uint64_t used = vgpu_account_used(card);
    uint64_t left = used < limit ? limit - used : 0;
    if (left < *free_bytes || vgpu_config()->oversubscribe) {
        *free_bytes = left;
    }
    *total = shown_total(limit, *total);
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    FETCH_REAL(cuMemGetInfo_v2)
    CUresult result = real(free, total);
    if (result != CUDA_SUCCESS || !vgpu_enter()) {
        return result;
    }
    /* Drivers take a missing output, and OptiX asks for one number only. */
    uint64_t shown_free = free != NULL ? *free : UINT64_MAX;
    uint64_t all = total != NULL ? *total : UINT64_MAX;
    show_share(vgpu_current_card(NULL), &shown_free, &all);
    if (free != NULL) {
        *free = shown_free;
    }
    if (total != NULL) {
        *total = all;
    }
    return result;
}

static unsigned int clamp32(uint64_t value) {
    return value > UINT32_MAX ? UINT32_MAX : (unsigned int)value;
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total) {
    FETCH_REAL(cuMemGetInfo)
    CUresult result = real(free, total);
    if (result != CUDA_SUCCESS || !vgpu_enter()) {
        return result;
    }
    uint64_t shown_free = free != NULL ? *free : UINT64_MAX;
    uint64_t all = total != NULL ? *total : UINT64_MAX;
    show_share(vgpu_current_card(NULL), &shown_free, &all);
    if (free != NULL) {
        *free = clamp32(shown_free);
    }
    if (total != NULL) {
        *total = clamp32(all);
    }
    return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
    FETCH_REAL(cuDeviceTotalMem_v2)
    CUresult result = real(bytes, dev);
    int card = result == CUDA_SUCCESS && bytes != NULL && vgpu_enter() ? vgpu_card_of(dev) : VGPU_CARD_NONE;
    uint64_t limit = card >= 0 ? vgpu_account_limit(card) : 0;
    if (limit != 0) {
        *bytes = shown_total(limit, *bytes);
    }
    return result;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev) {
    FETCH_REAL(cuDeviceTotalMem)
    CUresult result = real(bytes, dev);
    int card = result == CUDA_SUCCESS && bytes != NULL && vgpu_enter() ? vgpu_card_of(dev) : VGPU_CARD_NONE;
    uint64_t limit = card >= 0 ? vgpu_account_limit(card) : 0;
    if (limit != 0) {
        *bytes = clamp32(shown_total(limit, *bytes));
    }
    return result;
}
