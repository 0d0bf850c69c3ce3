#include "graphs.h"

#include <stdlib.h>

#include "hook.h"
#include "lock.h"
#include "log.h"
#include "reset.h"

struct vgpu_graph {
    vgpu_graph_t *next;
    CUgraph graph; /* NULL once destroyed */
    int instances; /* and calls in progress */
    uint64_t live[VGPU_MAX_DEVICES];
    uint64_t peak[VGPU_MAX_DEVICES]; /* charged */
    uint64_t growth;                 /* of the peak, by the node that is just being added */
};

typedef struct instance {
    struct instance *next;
    CUgraphExec exec;
    vgpu_graph_t *record;
} instance_t;

static vgpu_graph_t *records;
static instance_t *instances;
static uint64_t kept[VGPU_MAX_DEVICES]; /* charged: what the driver keeps beyond the graphs' peaks */
static local_lock_t lock;

void vgpu_reset_graphs(void) {
    records = NULL;
    instances = NULL;
    for (int card = 0; card < VGPU_MAX_DEVICES; card++) {
        kept[card] = 0;
    }
    atomic_store(&lock.word, 0);
}

static vgpu_graph_t *find(CUgraph graph) {
    vgpu_graph_t *record = records;
    while (record != NULL && record->graph != graph) {
        record = record->next;
    }
    return record;
}

/* Under the lock, which is this process's own; asking for an attribute calls nothing of ours. */
static void settle(int card) {
    __typeof__(&cuDeviceGetGraphMemAttribute) get = DRIVER(cuDeviceGetGraphMemAttribute);
    CUdevice device = vgpu_device_of(card);
    uint64_t reserved = 0;
    if (get == NULL || device < 0 || get(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved) != CUDA_SUCCESS) {
        reserved = 0;
    }
    for (const vgpu_graph_t *record = records; record != NULL; record = record->next) {
        reserved -= record->peak[card] < reserved ? record->peak[card] : reserved;
    }
    if (reserved > kept[card]) {
        vgpu_account_force(card, reserved - kept[card], VGPU_USE_DATA);
    } else {
        vgpu_account_return(card, kept[card] - reserved, VGPU_USE_DATA);
    }
    kept[card] = reserved;
}

void vgpu_graphs_settle(int card) {
    if (card >= 0) {
        local_lock(&lock);
        settle(card);
        local_unlock(&lock);
    }
}

bool vgpu_graphs_trim(void) {
    __typeof__(&cuDeviceGraphMemTrim) trim = REAL(cuDeviceGraphMemTrim);
    bool any = false;
    for (int card = 0; card < VGPU_MAX_DEVICES && trim != NULL; card++) {
        local_lock(&lock);
        bool here = kept[card] > 0;
        local_unlock(&lock);
        if (here) {
            trim(vgpu_device_of(card));
            vgpu_graphs_settle(card);
            any = true;
        }
    }
    return any;
}

/* Under the lock: forget a record that nothing refers to any more. */
static void drop_if_unused(vgpu_graph_t *record) {
    if (record->graph != NULL || record->instances > 0) {
        return;
    }
    vgpu_graph_t **link = &records;
    while (*link != record) {
        link = &(*link)->next;
    }
    *link = record->next;
    for (int card = 0; card < VGPU_MAX_DEVICES; card++) {
        if (record->peak[card] != 0) {
            settle(card); /* first: the bytes stay charged as long as they stay on the card */
            vgpu_return(card, record->peak[card], VGPU_USE_DATA);
        }
    }
    free(record);
}

CUresult vgpu_graph_reserve(CUgraph graph, int card, uint64_t bytes) {
    if (card < 0) {
        return vgpu_reserve_only(card, bytes, VGPU_USE_DATA);
    }
    local_lock(&lock);
    vgpu_graph_t *record = find(graph);
    if (record == NULL) {
        record = calloc(1, sizeof *record);
        if (record == NULL) {
            local_unlock(&lock);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        record->graph = graph;
        record->next = records;
        records = record;
    }
    uint64_t live = record->live[card] + bytes;
    uint64_t growth = live > record->peak[card] ? live - record->peak[card] : 0;
    CUresult refusal = growth == 0 ? CUDA_SUCCESS : vgpu_reserve_only(card, growth, VGPU_USE_DATA);
    if (refusal == CUDA_SUCCESS) {
        record->live[card] = live;
        record->peak[card] += growth;
        record->growth = growth;
    }
    local_unlock(&lock);
    return refusal;
}

void vgpu_graph_finish(CUgraph graph, int card, uint64_t bytes, CUdeviceptr pointer) {
    if (card < 0) {
        return;
    }
    local_lock(&lock);
    vgpu_graph_t *record = find(graph);
    if (record != NULL && pointer == 0) {
        record->live[card] -= bytes;
        record->peak[card] -= record->growth;
        vgpu_return(card, record->growth, VGPU_USE_DATA);
    }
    local_unlock(&lock);
    if (pointer != 0) {
        const book_entry_t entry = {.key = pointer,
                                    .value = bytes,
                                    .pool = (uint64_t)(uintptr_t)graph,
                                    .kind = BOOK_GRAPH_POINTER,
                                    .card = VGPU_CARD_NONE,
                                    .use = (uint16_t)card};
        vgpu_put_entry(&entry); /* without it a free inside the graph frees no room for later nodes */
    }
}

void vgpu_graph_freed(CUdeviceptr pointer, CUresult result) {
    book_entry_t entry;
    if (result != CUDA_SUCCESS || !book_take(BOOK_GRAPH_POINTER, pointer, &entry)) {
        return;
    }
    local_lock(&lock);
    vgpu_graph_t *record = find((CUgraph)(uintptr_t)entry.pool);
    if (record != NULL && record->live[entry.use] >= entry.value) {
        record->live[entry.use] -= entry.value;
    }
    local_unlock(&lock);
}

vgpu_graph_t *vgpu_graph_detach(CUgraph graph) {
    local_lock(&lock);
    vgpu_graph_t *record = graph == NULL ? NULL : find(graph);
    if (record != NULL) {
        record->graph = NULL;
        record->instances++; /* ours, so that nobody drops the record meanwhile */
    }
    local_unlock(&lock);
    return record;
}

static bool of_graph(const book_entry_t *entry, void *graph) {
    return entry->kind == BOOK_GRAPH_POINTER && entry->pool == *(uint64_t *)graph;
}

static void ignore(const book_entry_t *entry) {
    (void)entry;
}

void vgpu_graph_reattach(vgpu_graph_t *record, CUgraph graph) {
    if (record != NULL) {
        local_lock(&lock);
        record->instances--;
        record->graph = graph;
        drop_if_unused(record);
        local_unlock(&lock);
    }
}

void vgpu_graph_forget_pointers(CUgraph graph) {
    uint64_t key = (uint64_t)(uintptr_t)graph;
    book_remove_if(of_graph, ignore, &key);
}

void vgpu_graph_instantiated(CUgraph graph, CUgraphExec exec) {
    local_lock(&lock);
    vgpu_graph_t *record = find(graph);
    instance_t *instance = record == NULL ? NULL : calloc(1, sizeof *instance);
    if (instance != NULL) {
        *instance = (instance_t){.next = instances, .exec = exec, .record = record};
        instances = instance;
        record->instances++;
    }
    local_unlock(&lock);
}

vgpu_graph_t *vgpu_graph_exec_detach(CUgraphExec exec) {
    local_lock(&lock);
    instance_t **link = &instances;
    while (*link != NULL && (*link)->exec != exec) {
        link = &(*link)->next;
    }
    instance_t *instance = *link;
    vgpu_graph_t *record = NULL;
    if (instance != NULL) {
        *link = instance->next;
        record = instance->record;
        free(instance);
    }
    local_unlock(&lock);
    return record;
}

void vgpu_graph_exec_settle(vgpu_graph_t *record, CUgraphExec exec, CUresult result) {
    if (record == NULL) {
        return;
    }
    local_lock(&lock);
    instance_t *instance = result == CUDA_SUCCESS ? NULL : calloc(1, sizeof *instance);
    if (instance != NULL) {
        *instance = (instance_t){.next = instances, .exec = exec, .record = record};
        instances = instance;
    } else {
        record->instances--;
        drop_if_unused(record);
    }
    local_unlock(&lock);
}
