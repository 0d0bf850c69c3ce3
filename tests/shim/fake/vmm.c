/* Virtual memory management of the stand-in driver: memory lives until its last handle and its last mapping are gone.
 */
#include "driver.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define NO_CARD (-1)

struct physical {
    uint64_t magic;
    size_t bytes;
    int machine; /* NO_CARD: host memory, or memory that another process pays for */
    unsigned int handles;
    unsigned int mappings;
    CUmemAllocationProp props;
};

struct mapping {
    CUdeviceptr at;
    size_t bytes;
    struct physical *what;
    struct mapping *next;
};

/* What an exported descriptor says. */
struct ticket {
    pid_t pid;
    struct physical *what;
    size_t bytes;
    CUmemAllocationProp props;
};

static struct mapping *mappings;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const uint64_t magic = 0x564d4d5048595349ULL;

static struct physical *physical_of(CUmemGenericAllocationHandle handle) {
    struct physical *what = (struct physical *)(uintptr_t)handle;
    return what != NULL && what->magic == magic ? what : NULL;
}

/* Called with the lock held. */
static void drop_if_unused(struct physical *what) {
    if (what->handles == 0 && what->mappings == 0) {
        if (what->machine != NO_CARD) {
            fake_give(what->machine, what->bytes);
        }
        what->magic = 0;
        free(what);
    }
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, int option) {
    (void)prop;
    (void)option;
    *granularity = FAKE_GRANULE;
    return fake_ready();
}

static CUresult physical_new(CUmemGenericAllocationHandle *handle, size_t size, int machine,
                             const CUmemAllocationProp *props) {
    if (machine != NO_CARD && !fake_take(machine, size)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct physical *what = calloc(1, sizeof *what);
    *what = (struct physical){.magic = magic, .bytes = size, .machine = machine, .handles = 1};
    if (props != NULL) {
        what->props = *props;
    }
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)what;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
    FAKE_ENTER("cuMemCreate");
    int machine = NO_CARD;
    if (fake_ready() != CUDA_SUCCESS) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (handle == NULL || prop == NULL || flags != 0 || size == 0 || size % FAKE_GRANULE != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        CUresult result = fake_machine_of(prop->location.id, &machine);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return physical_new(handle, size, machine, prop);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    FAKE_ENTER("cuMemRelease");
    pthread_mutex_lock(&lock);
    struct physical *what = physical_of(handle);
    CUresult result = what == NULL || what->handles == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        what->handles--;
        drop_if_unused(what);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
    (void)alignment, (void)addr, (void)flags;
    size_t span;
    *ptr = fake_address(size, false, &span);
    return fake_ready();
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
    fake_address_back(ptr, size);
    return fake_ready();
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    FAKE_ENTER("cuMemMap");
    pthread_mutex_lock(&lock);
    struct physical *what = physical_of(handle);
    CUresult result = what == NULL || what->handles == 0 || offset + size > what->bytes || flags != 0
                          ? CUDA_ERROR_INVALID_VALUE
                          : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        struct mapping *mapping = malloc(sizeof *mapping);
        *mapping = (struct mapping){.at = ptr, .bytes = size, .what = what, .next = mappings};
        mappings = mapping;
        what->mappings++;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* One call may undo several neighbouring mappings. */
CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
    FAKE_ENTER("cuMemUnmap");
    size_t undone = 0;
    pthread_mutex_lock(&lock);
    struct mapping **link = &mappings;
    while (*link != NULL) {
        struct mapping *mapping = *link;
        if (mapping->at < ptr || mapping->at + mapping->bytes > ptr + size) {
            link = &mapping->next;
            continue;
        }
        *link = mapping->next;
        undone += mapping->bytes;
        mapping->what->mappings--;
        drop_if_unused(mapping->what);
        free(mapping);
    }
    pthread_mutex_unlock(&lock);
    return undone == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
    (void)ptr, (void)size, (void)desc, (void)count;
    return fake_ready();
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
    FAKE_ENTER("cuMemRetainAllocationHandle");
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)addr;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (struct mapping *mapping = mappings; mapping != NULL; mapping = mapping->next) {
        if (at >= mapping->at && at < mapping->at + mapping->bytes) {
            mapping->what->handles++;
            *handle = (CUmemGenericAllocationHandle)(uintptr_t)mapping->what;
            result = CUDA_SUCCESS;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type,
                                      unsigned long long flags) {
    (void)flags;
    struct physical *what = physical_of(handle);
    if (what == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return what == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
    }
    struct ticket ticket = {.pid = getpid(), .what = what, .bytes = what->bytes, .props = what->props};
    int fd = memfd_create("fake-vmm", MFD_CLOEXEC);
    if (fd < 0 || write(fd, &ticket, sizeof ticket) != sizeof ticket) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *(int *)shareable = fd;
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle, int type) {
    FAKE_ENTER("cuMemImportFromShareableHandle");
    struct ticket ticket;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        pread((int)(intptr_t)os_handle, &ticket, sizeof ticket, 0) != sizeof ticket) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (ticket.pid != getpid()) {
        return physical_new(handle, ticket.bytes, NO_CARD, &ticket.props);
    }
    pthread_mutex_lock(&lock);
    ticket.what->handles++;
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)ticket.what;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle) {
    struct physical *what = physical_of(handle);
    if (what == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *prop = what->props;
    return CUDA_SUCCESS;
}

/* A multicast object is address plumbing: memory is bound to it, it holds none. */
CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop) {
    FAKE_ENTER("cuMulticastCreate");
    return physical_new(handle, prop->size, NO_CARD, NULL);
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device) {
    (void)device;
    return physical_of(handle) == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
