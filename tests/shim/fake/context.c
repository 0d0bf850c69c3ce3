/* Start, devices, contexts, streams and events of the stand-in driver. */
#include "driver.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STACK_DEPTH 16

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;

static atomic_bool started;
static atomic_bool child_of_started;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static int visible_devices[FAKE_MAX_CARDS];
static int visible_count;
static struct {
    struct CUctx_st context;
    unsigned int references;
} primaries[FAKE_MAX_CARDS];
static CUcontext contexts;
static _Thread_local CUcontext stack[STACK_DEPTH];
static _Thread_local int depth;

static void in_child(void) {
    if (atomic_load(&started)) {
        atomic_store(&child_of_started, true);
    }
}

static void watch_fork(void) {
    pthread_atfork(NULL, NULL, in_child);
}

static int visible_by_name(const char *word) {
    char *end = NULL;
    long index = strtol(word, &end, 10);
    if (*word != '\0' && *end == '\0') {
        return index >= 0 && index < fake_visible_count() ? (int)index : -1;
    }
    for (int i = 0; *word != '\0' && i < fake_visible_count(); i++) {
        if (strncmp(fake_visible_card(i, NULL)->uuid, word, strlen(word)) == 0) {
            return i;
        }
    }
    return -1;
}

/* CUDA_VISIBLE_DEVICES: indices or UUID prefixes; the first one that means nothing ends the list. */
static void choose_devices(void) {
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    visible_count = 0;
    if (wanted == NULL) {
        for (int i = 0; i < fake_visible_count(); i++) {
            visible_devices[visible_count++] = i;
        }
        return;
    }
    char words[FAKE_MAX_CARDS * 96];
    snprintf(words, sizeof words, "%s", wanted);
    char *save = NULL;
    for (char *word = strtok_r(words, ",", &save); word != NULL; word = strtok_r(NULL, ",", &save)) {
        int index = visible_by_name(word);
        if (index < 0 || visible_count == FAKE_MAX_CARDS) {
            return;
        }
        visible_devices[visible_count++] = index;
    }
}

CUresult fake_ready(void) {
    return atomic_load(&started) && !atomic_load(&child_of_started) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static const struct fake_card *card_of(CUdevice device, int *machine) {
    if (device < 0 || device >= visible_count) {
        return NULL;
    }
    return fake_visible_card(visible_devices[device], machine);
}

CUresult fake_machine_of(CUdevice device, int *machine) {
    if (fake_ready() != CUDA_SUCCESS) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return card_of(device, machine) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuInit(unsigned int flags) {
    FAKE_ENTER("cuInit");
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_once(&fork_once, watch_fork);
    if (atomic_load(&child_of_started)) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    pthread_mutex_lock(&fake_lock);
    if (!atomic_load(&started)) {
        choose_devices();
        atomic_store(&started, visible_count > 0);
    }
    pthread_mutex_unlock(&fake_lock);
    return atomic_load(&started) ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    int machine;
    CUresult result = fake_machine_of(ordinal, &machine);
    if (result == CUDA_SUCCESS) {
        *device = ordinal;
    }
    return result;
}

CUresult cuDeviceGetCount(int *count) {
    if (fake_ready() != CUDA_SUCCESS) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    *count = visible_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice device) {
    const struct fake_card *card = card_of(device, NULL);
    if (card == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    snprintf(name, (size_t)len, "%s", card->name);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    const struct fake_card *card = card_of(device, NULL);
    if (card == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    fake_uuid_bytes(card->uuid, (unsigned char *)uuid->bytes);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    return cuDeviceGetUuid(uuid, device);
}

CUresult cuDeviceGetPCIBusId(char *bus_id, int len, CUdevice device) {
    const struct fake_card *card = card_of(device, NULL);
    if (card == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    snprintf(bus_id, (size_t)len, "%s", strlen(card->pci) > 12 ? card->pci + 4 : card->pci);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    const struct fake_card *card = card_of(device, NULL);
    if (card == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    unsigned int domain = 0;
    unsigned int bus = 0;
    unsigned int slot = 0;
    sscanf(card->pci, "%x:%x:%x", &domain, &bus, &slot);
    switch (attribute) {
    case 1:
        *value = 1024; /* threads in a block */
        break;
    case 16:
        *value = card->sm_count;
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *value = (int)bus;
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
        *value = (int)slot;
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
        *value = (int)domain;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = card->cc_major;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = card->cc_minor;
        break;
    default:
        *value = 1; /* every feature that a flag asks for is there */
    }
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    FAKE_ENTER("cuDeviceTotalMem_v2");
    const struct fake_card *card = card_of(device, NULL);
    if (card == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *bytes = card->memory_bytes;
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device) {
    size_t wide = 0;
    CUresult result = cuDeviceTotalMem_v2(&wide, device);
    *bytes = wide > UINT32_MAX ? UINT32_MAX : (unsigned int)wide;
    return result;
}

CUresult fake_context(CUcontext *context) {
    if (fake_ready() != CUDA_SUCCESS) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    *context = depth > 0 ? stack[depth - 1] : NULL;
    return *context != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult context_new(CUcontext *out, CUdevice device) {
    int machine;
    CUresult result = fake_machine_of(device, &machine);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!fake_take(machine, fake_visible_card(visible_devices[device], NULL)->context_bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUcontext made = calloc(1, sizeof *made);
    made->device = device;
    made->machine = machine;
    pthread_mutex_lock(&fake_lock);
    made->next = contexts;
    contexts = made;
    pthread_mutex_unlock(&fake_lock);
    if (depth < STACK_DEPTH) {
        stack[depth++] = made;
    }
    *out = made;
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice dev) {
    (void)flags;
    FAKE_ENTER("cuCtxCreate");
    return context_new(ctx, dev);
}

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev) {
    (void)flags;
    FAKE_ENTER("cuCtxCreate_v2");
    return context_new(ctx, dev);
}

CUresult cuCtxCreate_v3(CUcontext *ctx, CUexecAffinityParam *params, int num_params, unsigned int flags, CUdevice dev) {
    (void)flags;
    FAKE_ENTER("cuCtxCreate_v3");
    return params == NULL && num_params != 0 ? CUDA_ERROR_INVALID_VALUE : context_new(ctx, dev);
}

CUresult cuCtxCreate_v4(CUcontext *ctx, CUctxCreateParams *params, unsigned int flags, CUdevice dev) {
    (void)flags;
    (void)params;
    FAKE_ENTER("cuCtxCreate_v4");
    return context_new(ctx, dev);
}

static void context_drop(CUcontext context) {
    fake_blocks_of_context_drop(context);
    fake_arrays_of_context_drop(context);
    fake_give(context->machine, fake_visible_card(visible_devices[context->device], NULL)->context_bytes);
    int kept = 0;
    for (int i = 0; i < depth; i++) {
        if (stack[i] != context) {
            stack[kept++] = stack[i];
        }
    }
    depth = kept;
}

CUresult cuCtxDestroy_v2(CUcontext ctx) {
    FAKE_ENTER("cuCtxDestroy_v2");
    pthread_mutex_lock(&fake_lock);
    CUcontext *at = &contexts;
    while (*at != NULL && *at != ctx) {
        at = &(*at)->next;
    }
    bool known = *at != NULL;
    if (known) {
        *at = ctx->next;
    }
    pthread_mutex_unlock(&fake_lock);
    if (!known) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    context_drop(ctx);
    free(ctx);
    return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext ctx) {
    return cuCtxDestroy_v2(ctx);
}

CUresult cuCtxDetach(CUcontext ctx) {
    return cuCtxDestroy_v2(ctx);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev) {
    FAKE_ENTER("cuDevicePrimaryCtxRetain");
    int machine;
    CUresult result = fake_machine_of(dev, &machine);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&fake_lock);
    if (primaries[dev].references == 0 &&
        !fake_take(machine, fake_visible_card(visible_devices[dev], NULL)->context_bytes)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        primaries[dev].references++;
        primaries[dev].context = (struct CUctx_st){.device = dev, .machine = machine, .primary = true};
        *ctx = &primaries[dev].context;
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

static CUresult primary_let_go(CUdevice dev, bool all) {
    int machine;
    CUresult result = fake_machine_of(dev, &machine);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&fake_lock);
    unsigned int before = primaries[dev].references;
    primaries[dev].references = all ? 0 : before - (before > 0);
    bool last = before > 0 && primaries[dev].references == 0;
    pthread_mutex_unlock(&fake_lock);
    if (last) {
        context_drop(&primaries[dev].context);
    }
    return before == 0 && !all ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
    FAKE_ENTER("cuDevicePrimaryCtxRelease_v2");
    return primary_let_go(dev, false);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
    return primary_let_go(dev, false);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
    FAKE_ENTER("cuDevicePrimaryCtxReset_v2");
    return primary_let_go(dev, true);
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev) {
    return primary_let_go(dev, true);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active) {
    int machine;
    CUresult result = fake_machine_of(dev, &machine);
    if (result == CUDA_SUCCESS) {
        *flags = 0;
        *active = primaries[dev].references > 0;
    }
    return result;
}

CUresult cuCtxGetCurrent(CUcontext *ctx) {
    *ctx = depth > 0 ? stack[depth - 1] : NULL;
    return fake_ready();
}

CUresult cuCtxSetCurrent(CUcontext ctx) {
    if (depth == 0) {
        depth = 1;
    }
    stack[depth - 1] = ctx;
    depth -= ctx == NULL;
    return fake_ready();
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
    if (depth == STACK_DEPTH) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext ctx) {
    return cuCtxPushCurrent_v2(ctx);
}

CUresult cuCtxPopCurrent_v2(CUcontext *ctx) {
    if (depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    depth--;
    if (ctx != NULL) {
        *ctx = stack[depth];
    }
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *ctx) {
    return cuCtxPopCurrent_v2(ctx);
}

CUresult cuCtxGetDevice(CUdevice *device) {
    CUcontext context;
    CUresult result = fake_context(&context);
    if (result == CUDA_SUCCESS) {
        *device = context->device;
    }
    return result;
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
    *device = context->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    FAKE_ENTER("cuCtxSynchronize");
    fake_pools_settle();
    return fake_ready();
}

CUresult cuCtxSynchronize_v2(CUcontext context) {
    (void)context;
    fake_pools_settle();
    return fake_ready();
}

CUresult cuCtxSetLimit(int limit, size_t value) {
    (void)limit;
    (void)value;
    return fake_ready();
}

CUresult cuGreenCtxCreate(CUgreenCtx *ctx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags) {
    (void)flags;
    (void)desc;
    FAKE_ENTER("cuGreenCtxCreate");
    CUcontext made = NULL;
    CUresult result = context_new(&made, dev);
    if (result == CUDA_SUCCESS) {
        cuCtxPopCurrent_v2(NULL);
        *ctx = (CUgreenCtx)made;
    }
    return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx ctx) {
    return cuCtxDestroy_v2((CUcontext)ctx);
}
