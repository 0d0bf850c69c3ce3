/*
 * Memory imported from other APIs (Vulkan, DMA buffers): charged to the importer. CUDA IPC and VMM imports are not
 * hooked for charging: their exporter pays.
 */
#include <stdint.h>

#include "hook.h"

CUresult cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc) {
    FETCH_REAL(cuImportExternalMemory)
    FORWARD_UNLESS_COUNTING(real(out, desc))
    if (out == NULL || desc == NULL) {
        return real(out, desc);
    }
    uint64_t bytes = desc->size;
    uint64_t context = 0;
    int card = vgpu_current_card(&context);
    CUresult refusal = vgpu_reserve(card, bytes, VGPU_USE_DATA);
    if (refusal != CUDA_SUCCESS) {
        return refusal;
    }
    CUresult result = real(out, desc);
    if (result != CUDA_SUCCESS) {
        vgpu_return(card, bytes, VGPU_USE_DATA);
    } else if (!vgpu_note(BOOK_EXTERNAL, (uint64_t)(uintptr_t)*out, bytes, context, card, VGPU_USE_DATA)) {
        REAL(cuDestroyExternalMemory)(*out);
        vgpu_return(card, bytes, VGPU_USE_DATA);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    FETCH_REAL(cuDestroyExternalMemory)
    FORWARD_UNLESS_MEMBER(real(memory))
    FREE_NOTED(BOOK_EXTERNAL, (uint64_t)(uintptr_t)memory, real(memory));
}
