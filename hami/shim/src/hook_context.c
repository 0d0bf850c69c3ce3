/*
 * Contexts: each costs memory of its own, and what was allocated in one is gone when it is destroyed.
 *
 * The size of a context depends on card and driver. VGPU_CONTEXT_SIZE states it; otherwise the first process of a
 * container measures it around the creation of its first context: NVML lists exactly one new process on the card, and
 * nobody else of the container was there. Until it is known contexts cost nothing.
 */
#include <stdint.h>
#include <unistd.h>

#include "config.h"
#include "hook.h"
#include "lock.h"
#include "log.h"
#include "member.h"
#include "nvml_use.h"
#include "reset.h"

#define LARGEST_CONTEXT (1ULL << 30) /* above this, or unknown (all ones), it is no context's size */

typedef struct {
    int card;
    uint64_t bytes; /* reserved before the call */
    bool measuring;
    uint64_t joins;
    int before_count; /* processes on the card before the call */
    vgpu_nvml_process_t before[VGPU_NVML_PROCESSES];
} cost_t;

typedef struct {
    int retained;
    bool charged;
    uint64_t bytes;
    CUcontext context;
} primary_t;

static primary_t primaries[VGPU_MAX_DEVICES];
static local_lock_t lock;

void vgpu_reset_contexts(void) {
    for (int card = 0; card < VGPU_MAX_DEVICES; card++) {
        primaries[card] = (primary_t){0};
    }
    atomic_store(&lock.word, 0);
}

/* Is this the only process of the container? Dead ones that nobody found out count as present: no measurement then. */
static bool alone(uint64_t *joins) {
    const vgpu_region_t *region = vgpu_member.region;
    *joins = __atomic_load_n(&region->tail.joins, __ATOMIC_ACQUIRE);
    uint32_t high = __atomic_load_n(&region->tail.slot_high, __ATOMIC_ACQUIRE);
    for (uint32_t slot = 0; slot < high && slot < VGPU_MAX_SLOTS; slot++) {
        int32_t status = __atomic_load_n(&region->procs[slot].status, __ATOMIC_RELAXED);
        if ((int)slot != vgpu_member.slot && status != VGPU_SLOT_FREE) {
            return false;
        }
    }
    return true;
}

static CUresult begin(cost_t *cost, int card) {
    cost->card = card;
    cost->bytes = 0;
    cost->measuring = false;
    if (card < 0) {
        return vgpu_reserve(card, 0, VGPU_USE_CONTEXT);
    }
    const vgpu_config_t *config = vgpu_config();
    vgpu_region_t *region = vgpu_member.region;
    uint64_t known = __atomic_load_n(&region->tail.context_bytes[card], __ATOMIC_RELAXED);
    if (config->context_set) {
        cost->bytes = config->context_bytes;
    } else if (known != 0) {
        cost->bytes = known - 1;
    } else if (alone(&cost->joins) && vgpu_nvml_start()) {
        cost->before_count = vgpu_nvml_processes(region->uuid[card], cost->before);
        cost->measuring = cost->before_count >= 0;
        if (!cost->measuring) {
            vgpu_nvml_stop();
        }
    }
    return vgpu_reserve(card, cost->bytes, VGPU_USE_CONTEXT);
}

static bool was_there(const cost_t *cost, unsigned int pid) {
    for (int i = 0; i < cost->before_count; i++) {
        if (cost->before[i].pid == pid) {
            return true;
        }
    }
    return false;
}

/*
 * The process that came to the card during the call and has our pid; where the driver knows us by another pid (it sees
 * the host's), the only one that came. None or several: no answer now, a later process may find one.
 */
static bool measured(const cost_t *cost, uint64_t *size) {
    vgpu_nvml_process_t after[VGPU_NVML_PROCESSES];
    int count = vgpu_nvml_processes(vgpu_member.region->uuid[cost->card], after);
    unsigned int mine = (unsigned int)getpid();
    int came = 0;
    for (int i = 0; i < count; i++) {
        if (was_there(cost, after[i].pid)) {
            continue;
        }
        *size = after[i].bytes;
        came++;
        if (after[i].pid == mine) {
            came = 1;
            break;
        }
    }
    uint64_t joins;
    return came == 1 && *size <= LARGEST_CONTEXT && alone(&joins) && joins == cost->joins;
}

/* After the call: what the context costs, now also where it was measured. False: it does not fit the limit. */
static bool settle(cost_t *cost, bool created) {
    if (!cost->measuring) {
        return true;
    }
    uint64_t size = 0;
    bool valid = created && measured(cost, &size);
    vgpu_nvml_stop();
    if (!valid) {
        return true;
    }
    __atomic_store_n(&vgpu_member.region->tail.context_bytes[cost->card], size + 1, __ATOMIC_RELAXED);
    vgpu_log(LOG_INFO, "a context on card %d takes %llu bytes", cost->card, (unsigned long long)size);
    if (vgpu_reserve(cost->card, size, VGPU_USE_CONTEXT) != CUDA_SUCCESS) {
        return false;
    }
    cost->bytes = size;
    return true;
}

static CUresult created(cost_t *cost, CUresult result, CUcontext context) {
    bool fits = settle(cost, result == CUDA_SUCCESS);
    if (result == CUDA_SUCCESS && fits && cost->bytes > 0) {
        fits = vgpu_note(BOOK_CONTEXT, (uint64_t)(uintptr_t)context, cost->bytes, 0, cost->card, VGPU_USE_CONTEXT);
    }
    if (result != CUDA_SUCCESS || !fits) {
        vgpu_return(cost->card, cost->bytes, VGPU_USE_CONTEXT);
    }
    if (result == CUDA_SUCCESS && !fits) {
        REAL(cuCtxDestroy_v2)(context);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

#define CREATE(symbol, call)                                                                                           \
    FETCH_REAL(symbol)                                                                                                 \
    FORWARD_UNLESS_COUNTING(call)                                                                                      \
    if (ctx == NULL) {                                                                                                 \
        return call;                                                                                                   \
    }                                                                                                                  \
    cost_t cost;                                                                                                       \
    CUresult refusal = begin(&cost, vgpu_card_of(dev));                                                                \
    if (refusal != CUDA_SUCCESS) {                                                                                     \
        return refusal;                                                                                                \
    }                                                                                                                  \
    CUresult result = call;                                                                                            \
    return created(&cost, result, *ctx);

/* A green context is a share of a card's processors with a context's memory of its own. */
CUresult cuGreenCtxCreate(CUgreenCtx *ctx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags) {
    FETCH_REAL(cuGreenCtxCreate)
    FORWARD_UNLESS_COUNTING(real(ctx, desc, dev, flags))
    cost_t cost;
    CUresult refusal = ctx == NULL ? CUDA_SUCCESS : begin(&cost, vgpu_card_of(dev));
    if (ctx == NULL || refusal != CUDA_SUCCESS) {
        return ctx == NULL ? real(ctx, desc, dev, flags) : refusal;
    }
    CUresult result = real(ctx, desc, dev, flags);
    if (!settle(&cost, result == CUDA_SUCCESS) ||
        (result == CUDA_SUCCESS &&
         !vgpu_note(BOOK_GREEN, (uint64_t)(uintptr_t)*ctx, cost.bytes, 0, cost.card, VGPU_USE_CONTEXT))) {
        REAL(cuGreenCtxDestroy)(*ctx);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) {
        vgpu_return(cost.card, cost.bytes, VGPU_USE_CONTEXT);
    }
    return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx ctx) {
    FETCH_REAL(cuGreenCtxDestroy)
    FORWARD_UNLESS_MEMBER(real(ctx))
    vgpu_forget_contexts();
    FREE_NOTED(BOOK_GREEN, (uint64_t)(uintptr_t)ctx, real(ctx));
}

CUresult cuCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice dev){CREATE(cuCtxCreate, real(ctx, flags, dev))}

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev){CREATE(cuCtxCreate_v2, real(ctx, flags, dev))}

CUresult cuCtxCreate_v3(CUcontext *ctx, CUexecAffinityParam *params, int num_params, unsigned int flags,
                        CUdevice dev){CREATE(cuCtxCreate_v3, real(ctx, params, num_params, flags, dev))}

CUresult cuCtxCreate_v4(CUcontext *ctx, CUctxCreateParams *params, unsigned int flags, CUdevice dev) {
    CREATE(cuCtxCreate_v4, real(ctx, params, flags, dev))
}

static CUresult destroy(CUcontext ctx, CUresult (*real)(CUcontext)) {
    book_entry_t entry;
    bool known = book_take(BOOK_CONTEXT, (uint64_t)(uintptr_t)ctx, &entry);
    CUresult result = real(ctx);
    if (result == CUDA_SUCCESS) {
        vgpu_drop_context((uint64_t)(uintptr_t)ctx);
    }
    if (known && result == CUDA_SUCCESS) {
        vgpu_return_entry(&entry);
    } else if (known) {
        vgpu_put_entry(&entry);
    }
    return result;
}

CUresult cuCtxDestroy(CUcontext ctx) {
    FETCH_REAL(cuCtxDestroy)
    FORWARD_UNLESS_MEMBER(real(ctx))
    return destroy(ctx, real);
}

CUresult cuCtxDestroy_v2(CUcontext ctx) {
    FETCH_REAL(cuCtxDestroy_v2)
    FORWARD_UNLESS_MEMBER(real(ctx))
    return destroy(ctx, real);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev) {
    FETCH_REAL(cuDevicePrimaryCtxRetain)
    FORWARD_UNLESS_COUNTING(real(ctx, dev))
    int card = vgpu_card_of(dev);
    if (ctx == NULL || card < 0) {
        return card == VGPU_CARD_REFUSED ? CUDA_ERROR_OUT_OF_MEMORY : real(ctx, dev);
    }
    local_lock(&lock);
    bool charged = primaries[card].charged;
    local_unlock(&lock);
    cost_t cost = {.card = card, .measuring = false};
    CUresult refusal = charged ? CUDA_SUCCESS : begin(&cost, card);
    if (refusal != CUDA_SUCCESS) {
        return refusal;
    }
    CUresult result = real(ctx, dev);
    if (!settle(&cost, result == CUDA_SUCCESS)) {
        REAL(cuDevicePrimaryCtxRelease_v2)(dev);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    local_lock(&lock);
    primary_t *primary = &primaries[card];
    bool first = result == CUDA_SUCCESS && !primary->charged;
    if (first) {
        *primary = (primary_t){.charged = true, .bytes = cost.bytes, .context = *ctx};
    }
    primary->retained += result == CUDA_SUCCESS ? 1 : 0;
    local_unlock(&lock);
    if (!first) {
        vgpu_return(card, cost.bytes, VGPU_USE_CONTEXT); /* refused, or another thread was first */
    }
    return result;
}

/* The primary context is gone: so is all that was allocated in it. */
static void primary_gone(int card) {
    primary_t gone = primaries[card];
    primaries[card] = (primary_t){0};
    vgpu_drop_context((uint64_t)(uintptr_t)gone.context);
    vgpu_return(card, gone.bytes, VGPU_USE_CONTEXT);
}

static CUresult released(CUresult result, CUdevice dev, bool reset) {
    int card = vgpu_card_of(dev);
    if (result == CUDA_SUCCESS && card >= 0) {
        local_lock(&lock);
        if (primaries[card].charged && (reset || --primaries[card].retained == 0)) {
            primary_gone(card);
        }
        local_unlock(&lock);
    }
    return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
    FETCH_REAL(cuDevicePrimaryCtxRelease)
    FORWARD_UNLESS_MEMBER(real(dev))
    return released(real(dev), dev, false);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
    FETCH_REAL(cuDevicePrimaryCtxRelease_v2)
    FORWARD_UNLESS_MEMBER(real(dev))
    return released(real(dev), dev, false);
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev) {
    FETCH_REAL(cuDevicePrimaryCtxReset)
    FORWARD_UNLESS_MEMBER(real(dev))
    return released(real(dev), dev, true);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
    FETCH_REAL(cuDevicePrimaryCtxReset_v2)
    FORWARD_UNLESS_MEMBER(real(dev))
    return released(real(dev), dev, true);
}
