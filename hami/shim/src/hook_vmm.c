/*
 * Virtual memory management: physical memory lives while a handle or a mapping of it lives, and is charged that long.
 *
 * Charged is the card named in the properties, not the current one; host memory is not charged. Imported handles are
 * the exporter's to pay; their mappings are noted only so that an unmap of a range can step over them.
 */
#include <stdint.h>
#include <stdlib.h>

#include "hook.h"
#include "lock.h"
#include "reset.h"

#define SMALLEST_MAPPING 65536 /* step over parts of a range that we did not see mapped */

typedef struct {
    uint64_t bytes;
    int card;
    uint32_t handles;
    uint32_t releasing; /* handles given to the driver's release, whose answer is not there yet */
    uint32_t mappings;
} memory_t;

typedef struct {
    uint64_t size;
    memory_t *memory; /* NULL: imported */
} mapping_t;

static local_lock_t lock;

void vgpu_reset_vmm(void) {
    atomic_store(&lock.word, 0);
}

static bool note(book_kind_t kind, uint64_t key, void *record) {
    const book_entry_t entry = {.key = key, .value = (uint64_t)(uintptr_t)record, .kind = kind, .card = VGPU_CARD_NONE};
    book_entry_t replaced;
    return book_put(&entry, &replaced);
}

static void *record_of(const book_entry_t *entry) {
    return (void *)(uintptr_t)entry->value;
}

/* Under the lock. */
static void drop_if_unused(memory_t *memory) {
    if (memory->handles == 0 && memory->mappings == 0) {
        vgpu_return(memory->card, memory->bytes, VGPU_USE_DATA);
        free(memory);
    }
}

static CUresult created(CUmemGenericAllocationHandle handle, uint64_t bytes, int card) {
    memory_t *memory = calloc(1, sizeof *memory);
    if (memory != NULL) {
        *memory = (memory_t){.bytes = bytes, .card = card, .handles = 1};
        if (note(BOOK_VMM_HANDLE, handle, memory)) {
            return CUDA_SUCCESS;
        }
        free(memory);
    }
    REAL(cuMemRelease)(handle);
    vgpu_return(card, bytes, VGPU_USE_DATA);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
    FETCH_REAL(cuMemCreate)
    FORWARD_UNLESS_COUNTING(real(handle, size, prop, flags))
    if (handle == NULL || prop == NULL || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return real(handle, size, prop, flags);
    }
    int card = vgpu_card_of(prop->location.id);
    CUresult refusal = vgpu_reserve(card, size, VGPU_USE_DATA);
    if (refusal != CUDA_SUCCESS) {
        return refusal;
    }
    CUresult result = real(handle, size, prop, flags);
    if (result != CUDA_SUCCESS) {
        vgpu_return(card, size, VGPU_USE_DATA);
        return result;
    }
    return card < 0 ? result : created(*handle, size, card);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    FETCH_REAL(cuMemRelease)
    FORWARD_UNLESS_MEMBER(real(handle))
    book_entry_t entry;
    memory_t *memory = NULL;
    local_lock(&lock);
    if (book_find(BOOK_VMM_HANDLE, handle, &entry)) {
        memory = record_of(&entry);
        memory->releasing++;
        if (memory->releasing == memory->handles) {
            book_take(BOOK_VMM_HANDLE, handle, &entry); /* the driver may give this number out again at once */
        }
    }
    local_unlock(&lock);
    CUresult result = real(handle);
    if (memory != NULL) {
        local_lock(&lock);
        memory->releasing--;
        if (result == CUDA_SUCCESS) {
            memory->handles--;
            drop_if_unused(memory);
        } else {
            note(BOOK_VMM_HANDLE, handle, memory);
        }
        local_unlock(&lock);
    }
    return result;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    FETCH_REAL(cuMemMap)
    FORWARD_UNLESS_COUNTING(real(ptr, size, offset, handle, flags))
    mapping_t *mapping = calloc(1, sizeof *mapping);
    if (mapping == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = real(ptr, size, offset, handle, flags);
    if (result != CUDA_SUCCESS) {
        free(mapping);
        return result;
    }
    book_entry_t entry;
    local_lock(&lock);
    mapping->size = size;
    mapping->memory = book_find(BOOK_VMM_HANDLE, handle, &entry) ? record_of(&entry) : NULL;
    bool noted = note(BOOK_VMM_MAPPING, ptr, mapping);
    if (noted && mapping->memory != NULL) {
        mapping->memory->mappings++;
    }
    local_unlock(&lock);
    if (!noted) {
        free(mapping);
        REAL(cuMemUnmap)(ptr, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
    FETCH_REAL(cuMemUnmap)
    FORWARD_UNLESS_MEMBER(real(ptr, size))
    CUresult result = real(ptr, size);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    local_lock(&lock);
    for (CUdeviceptr at = ptr; at - ptr < size;) {
        book_entry_t entry;
        if (!book_take(BOOK_VMM_MAPPING, at, &entry)) {
            at += SMALLEST_MAPPING;
            continue;
        }
        mapping_t *mapping = record_of(&entry);
        at += mapping->size;
        if (mapping->memory != NULL) {
            mapping->memory->mappings--;
            drop_if_unused(mapping->memory);
        }
        free(mapping);
    }
    local_unlock(&lock);
    return result;
}

static bool holds_address(const book_entry_t *entry, void *address) {
    uint64_t wanted = *(uint64_t *)address;
    return entry->kind == BOOK_VMM_MAPPING && wanted >= entry->key &&
           wanted - entry->key < ((const mapping_t *)record_of(entry))->size;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
    FETCH_REAL(cuMemRetainAllocationHandle)
    FORWARD_UNLESS_MEMBER(real(handle, addr))
    CUresult result = real(handle, addr);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    uint64_t address = (uint64_t)(uintptr_t)addr;
    book_entry_t entry;
    local_lock(&lock);
    if (book_search(holds_address, &address, &entry)) {
        memory_t *memory = ((mapping_t *)record_of(&entry))->memory;
        if (memory != NULL && note(BOOK_VMM_HANDLE, *handle, memory)) {
            memory->handles++;
        }
    }
    local_unlock(&lock);
    return result;
}
