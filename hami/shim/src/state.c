#include "state.h"

#include <errno.h>
#include <string.h>

#include "cards.h"
#include "config.h"
#include "driver.h"
#include "graph.h"
#include "lock.h"
#include "log.h"
#include "member.h"
#include "pools.h"
#include "reset.h"

typedef enum { STATE_NEW, STATE_IDLE, STATE_READY, STATE_CLOSED, STATE_LEFT } state_t;

static _Atomic int state = STATE_NEW;
static int card_of_device[VGPU_MAX_VISIBLE];
static int device_count;
static _Atomic uint32_t context_generation = 1;

static _Thread_local struct {
    CUcontext context;
    uint32_t generation;
    int card;
} last;

static state_t fail(const vgpu_config_t *config, const char *what, const char *why) {
    vgpu_log(LOG_ERROR, "%s: %s; %s", what, why, config->fail_open ? "running without limits" : "refusing GPU memory");
    return config->fail_open ? STATE_IDLE : STATE_CLOSED;
}

static state_t join(const vgpu_config_t *config) {
    static vgpu_card_t cards[VGPU_MAX_VISIBLE];
    int count = vgpu_find_cards(config, cards);
    if (count < 0) {
        return STATE_NEW; /* no driver yet, or not initialised: ask again at the next call */
    }
    const char *why = "";
    if (!vgpu_member_join(config->region_path, cards, count, config->priority, &why)) {
        return fail(config, config->region_path, why);
    }
    for (int i = 0; i < count; i++) {
        card_of_device[i] = cards[i].index >= 0 ? cards[i].index : VGPU_CARD_REFUSED;
    }
    device_count = count;
    return STATE_READY;
}

static bool enter_slow(void) {
    const vgpu_config_t *config = vgpu_config();
    if (!config->active) {
        atomic_store(&state, STATE_IDLE);
        return false;
    }
    vgpu_self_t *self = vgpu_self_get();
    if (self == NULL) {
        atomic_store(&state, STATE_CLOSED);
        return false;
    }
    int saved = errno;
    local_lock(&self->join_lock);
    state_t now = (state_t)atomic_load(&state);
    if (now == STATE_READY && !vgpu_joined()) {
        /* A fork child: it has one thread, and what the book lists is the parent's. */
        book_reset();
        vgpu_reset_graphs();
        vgpu_reset_pools();
        vgpu_reset_vmm();
        vgpu_reset_contexts();
        vgpu_forget_contexts();
        now = STATE_NEW;
    }
    if (now == STATE_NEW) {
        now = config->refused ? STATE_CLOSED : join(config);
        atomic_store(&state, now);
    }
    local_unlock(&self->join_lock);
    errno = saved;
    return now == STATE_READY;
}

bool vgpu_enter(void) {
    int now = atomic_load_explicit(&state, memory_order_acquire);
    if (__builtin_expect(now == STATE_READY && vgpu_joined(), 1)) {
        return true;
    }
    return now == STATE_NEW || now == STATE_READY ? enter_slow() : false;
}

bool vgpu_closed(void) {
    int now = atomic_load_explicit(&state, memory_order_relaxed);
    return now == STATE_CLOSED || now == STATE_LEFT;
}

CUresult vgpu_closed_error(void) {
    return CUDA_ERROR_NOT_PERMITTED;
}

int vgpu_card_of(CUdevice device) {
    return device >= 0 && device < device_count ? card_of_device[device] : VGPU_CARD_NONE;
}

void vgpu_forget_contexts(void) {
    atomic_fetch_add(&context_generation, 1);
}

static int current_device_card(void) {
    __typeof__(&cuCtxGetDevice) get_device = DRIVER(cuCtxGetDevice);
    CUdevice device;
    if (get_device == NULL || get_device(&device) != CUDA_SUCCESS) {
        return VGPU_CARD_NONE;
    }
    return vgpu_card_of(device);
}

int vgpu_current_card(uint64_t *context) {
    __typeof__(&cuCtxGetCurrent) get_current = DRIVER(cuCtxGetCurrent);
    CUcontext current = NULL;
    if (get_current == NULL || get_current(&current) != CUDA_SUCCESS || current == NULL) {
        return VGPU_CARD_NONE;
    }
    if (context != NULL) {
        *context = (uint64_t)(uintptr_t)current;
    }
    uint32_t generation = atomic_load_explicit(&context_generation, memory_order_relaxed);
    if (last.context != current || last.generation != generation) {
        last.card = current_device_card();
        last.context = current;
        last.generation = generation;
    }
    return last.card;
}

int vgpu_stream_card(CUstream stream, uint64_t *context) {
    CUcontext current = NULL;
    CUcontext owner = NULL;
    __typeof__(&cuStreamGetCtx) stream_context = DRIVER(cuStreamGetCtx);
    __typeof__(&cuCtxGetCurrent) get_current = DRIVER(cuCtxGetCurrent);
    bool named = stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
    if (!named || stream_context == NULL || stream_context(stream, &owner) != CUDA_SUCCESS || owner == NULL ||
        get_current == NULL || get_current(&current) != CUDA_SUCCESS || owner == current) {
        return vgpu_current_card(context);
    }
    /* A stream of another context than the current one: the memory comes from the stream's card. */
    __typeof__(&cuCtxPushCurrent_v2) push = DRIVER(cuCtxPushCurrent_v2);
    __typeof__(&cuCtxPopCurrent_v2) pop = DRIVER(cuCtxPopCurrent_v2);
    if (push == NULL || pop == NULL || push(owner) != CUDA_SUCCESS) {
        return vgpu_current_card(context);
    }
    int card = current_device_card();
    CUcontext popped;
    pop(&popped);
    *context = (uint64_t)(uintptr_t)owner;
    return card;
}

CUdevice vgpu_device_of(int card) {
    for (CUdevice device = 0; card >= 0 && device < device_count; device++) {
        if (card_of_device[device] == card) {
            return device;
        }
    }
    return -1;
}

CUresult vgpu_reserve_only(int card, uint64_t bytes, vgpu_use_t use) {
    if (card == VGPU_CARD_REFUSED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return card < 0 || vgpu_account_reserve(card, bytes, use) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult vgpu_reserve(int card, uint64_t bytes, vgpu_use_t use) {
    CUresult result = vgpu_reserve_only(card, bytes, use);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && card >= 0) {
        /* As the driver does when a card is full: first what pools and graphs only keep for later. */
        bool pools = vgpu_pools_trim();
        bool graphs = vgpu_graphs_trim();
        result = pools || graphs ? vgpu_reserve_only(card, bytes, use) : result;
    }
    return result;
}

void vgpu_return(int card, uint64_t bytes, vgpu_use_t use) {
    if (card >= 0) {
        vgpu_account_return(card, bytes, use);
    }
}

bool vgpu_put_entry(const book_entry_t *entry) {
    book_entry_t replaced;
    bool put = book_put(entry, &replaced);
    if (replaced.kind != 0) {
        vgpu_return_entry(&replaced);
    }
    return put;
}

bool vgpu_note(book_kind_t kind, uint64_t key, uint64_t bytes, uint64_t context, int card, vgpu_use_t use) {
    if (card < 0) {
        return true;
    }
    const book_entry_t entry = {
        .key = key, .value = bytes, .context = context, .kind = kind, .card = (int16_t)card, .use = (uint16_t)use};
    return vgpu_put_entry(&entry);
}

void vgpu_return_entry(const book_entry_t *entry) {
    vgpu_return(entry->card, entry->value, (vgpu_use_t)entry->use);
}

static bool of_context(const book_entry_t *entry, void *context) {
    return entry->context != 0 && entry->context == *(uint64_t *)context;
}

void vgpu_drop_context(uint64_t context) {
    vgpu_forget_contexts();
    if (context != 0) {
        book_remove_if(of_context, vgpu_return_entry, &context);
    }
}

/*
 * A clean exit gives the memory back at once; whoever ends otherwise is found out by the slot's lock. What other
 * threads still ask for during the exit is refused, because nobody would count it.
 */
__attribute__((destructor)) static void leave(void) {
    int ready = STATE_READY;
    if (vgpu_joined() && atomic_compare_exchange_strong(&state, &ready, STATE_LEFT)) {
        vgpu_member_leave();
    }
}
