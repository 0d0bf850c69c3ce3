/*
 * Graph memory: charged when the allocation node is made, returned when the graph and what was instantiated from it are
 * gone. A graph with such nodes cannot be cloned and has at most one instance at a time (CUDA programming guide, graph
 * memory nodes), so the nodes count once.
 */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

#include "hook.h"
#include "lock.h"
#include "log.h"
#include "reset.h"

typedef struct record {
    struct record *next;
    CUgraph graph; /* NULL once destroyed */
    int instances;
    uint64_t bytes[VGPU_MAX_DEVICES];
} record_t;

typedef struct instance {
    struct instance *next;
    CUgraphExec exec;
    record_t *record;
} instance_t;

static record_t *records;
static instance_t *instances;
static local_lock_t lock;

static record_t *find(CUgraph graph) {
    record_t *record = records;
    while (record != NULL && record->graph != graph) {
        record = record->next;
    }
    return record;
}

void vgpu_reset_graphs(void) {
    records = NULL;
    instances = NULL;
    atomic_store(&lock.word, 0);
}

/* Under the lock: return the bytes of a record that nothing refers to any more. */
static void drop_if_unused(record_t *record) {
    if (record->graph != NULL || record->instances > 0) {
        return;
    }
    for (int card = 0; card < VGPU_MAX_DEVICES; card++) {
        if (record->bytes[card] != 0) {
            vgpu_return(card, record->bytes[card], VGPU_USE_DATA);
        }
    }
    record_t **link = &records;
    while (*link != record) {
        link = &(*link)->next;
    }
    *link = record->next;
    free(record);
}

bool vgpu_graph_add(CUgraph graph, int card, uint64_t bytes) {
    if (card < 0) {
        return true;
    }
    local_lock(&lock);
    record_t *record = find(graph);
    if (record == NULL) {
        record = calloc(1, sizeof *record);
        if (record != NULL) {
            record->graph = graph;
            record->next = records;
            records = record;
        }
    }
    if (record != NULL) {
        record->bytes[card] += bytes;
    }
    local_unlock(&lock);
    return record != NULL;
}

CUgraph vgpu_capturing_graph(CUstream stream) {
    __typeof__(&cuStreamIsCapturing) is_capturing = DRIVER(cuStreamIsCapturing);
    __typeof__(&cuStreamGetCaptureInfo_v2) info = DRIVER(cuStreamGetCaptureInfo_v2);
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUgraph graph = NULL;
    if (stream == NULL || stream == CU_STREAM_LEGACY || is_capturing == NULL || info == NULL ||
        is_capturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        return NULL; /* the legacy stream cannot be captured */
    }
    uint64_t id;
    return info(stream, &status, &id, &graph, NULL, NULL) == CUDA_SUCCESS ? graph : NULL;
}

static CUresult reserve_node(const CUDA_MEM_ALLOC_NODE_PARAMS *params, int *card) {
    bool on_card = params->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    *card = on_card ? vgpu_card_of(params->poolProps.location.id) : VGPU_CARD_NONE;
    return vgpu_reserve(*card, params->bytesize, VGPU_USE_DATA);
}

static CUresult finish_node(CUresult result, CUgraph graph, uint64_t bytes, int card) {
    if (result != CUDA_SUCCESS) {
        vgpu_return(card, bytes, VGPU_USE_DATA);
    } else if (!vgpu_graph_add(graph, card, bytes)) {
        /* The node cannot be taken back; without a record its charge stays until the process ends. */
        vgpu_log(LOG_WARNING, "no memory to note a graph node of %llu bytes", (unsigned long long)bytes);
    }
    return result;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t num_deps,
                                CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    FETCH_REAL(cuGraphAddMemAllocNode)
    FORWARD_UNLESS_COUNTING(real(node, graph, deps, num_deps, params))
    if (params == NULL) {
        return real(node, graph, deps, num_deps, params);
    }
    int card;
    uint64_t bytes = params->bytesize;
    CUresult refusal = reserve_node(params, &card);
    if (refusal != CUDA_SUCCESS) {
        return refusal;
    }
    return finish_node(real(node, graph, deps, num_deps, params), graph, bytes, card);
}

#define ADD_NODE(call)                                                                                                 \
    do {                                                                                                               \
        if (params == NULL || params->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) {                                          \
            return call;                                                                                               \
        }                                                                                                              \
        FORWARD_UNLESS_COUNTING(call)                                                                                  \
        int card;                                                                                                      \
        uint64_t bytes = params->alloc.bytesize;                                                                       \
        CUresult refusal = reserve_node(&params->alloc, &card);                                                        \
        if (refusal != CUDA_SUCCESS) {                                                                                 \
            return refusal;                                                                                            \
        }                                                                                                              \
        return finish_node(call, graph, bytes, card);                                                                  \
    } while (0)

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t num_deps,
                        CUgraphNodeParams *params) {
    FETCH_REAL(cuGraphAddNode)
    ADD_NODE(real(node, graph, deps, num_deps, params));
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *edges,
                           size_t num_deps, CUgraphNodeParams *params) {
    FETCH_REAL(cuGraphAddNode_v2)
    ADD_NODE(real(node, graph, deps, edges, num_deps, params));
}

CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *edges,
                           size_t num_deps, CUgraphNodeParams *params) {
    FETCH_REAL(cuGraphAddNode_v3)
    ADD_NODE(real(node, graph, deps, edges, num_deps, params));
}

/* Taken off its handle before the driver may give the handle to another graph. */
CUresult cuGraphDestroy(CUgraph graph) {
    FETCH_REAL(cuGraphDestroy)
    FORWARD_UNLESS_MEMBER(real(graph))
    local_lock(&lock);
    record_t *record = graph == NULL ? NULL : find(graph);
    if (record != NULL) {
        record->graph = NULL;
        record->instances++; /* ours, so that nobody drops the record meanwhile */
    }
    local_unlock(&lock);
    CUresult result = real(graph);
    if (record != NULL) {
        local_lock(&lock);
        record->instances--;
        record->graph = result == CUDA_SUCCESS ? NULL : graph;
        drop_if_unused(record);
        local_unlock(&lock);
    }
    return result;
}

static CUresult instantiated(CUresult result, CUgraph graph, const CUgraphExec *exec) {
    if (result != CUDA_SUCCESS || exec == NULL || !vgpu_enter()) {
        return result;
    }
    local_lock(&lock);
    record_t *record = find(graph);
    instance_t *instance = record == NULL ? NULL : calloc(1, sizeof *instance);
    if (instance != NULL) {
        instance->exec = *exec;
        instance->record = record;
        instance->next = instances;
        instances = instance;
        record->instances++;
    }
    local_unlock(&lock);
    return result;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t len) {
    FETCH_REAL(cuGraphInstantiate)
    return instantiated(real(exec, graph, error_node, log, len), graph, exec);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t len) {
    FETCH_REAL(cuGraphInstantiate_v2)
    return instantiated(real(exec, graph, error_node, log, len), graph, exec);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    FETCH_REAL(cuGraphInstantiateWithFlags)
    return instantiated(real(exec, graph, flags), graph, exec);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    FETCH_REAL(cuGraphInstantiateWithParams)
    return instantiated(real(exec, graph, params), graph, exec);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    FETCH_REAL(cuGraphInstantiateWithParams_ptsz)
    return instantiated(real(exec, graph, params), graph, exec);
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    FETCH_REAL(cuGraphExecDestroy)
    FORWARD_UNLESS_MEMBER(real(exec))
    local_lock(&lock);
    instance_t **link = &instances;
    while (*link != NULL && (*link)->exec != exec) {
        link = &(*link)->next;
    }
    instance_t *instance = *link;
    if (instance != NULL) {
        *link = instance->next;
    }
    local_unlock(&lock);
    CUresult result = real(exec);
    if (instance != NULL) {
        local_lock(&lock);
        if (result == CUDA_SUCCESS) {
            instance->record->instances--;
            drop_if_unused(instance->record);
            free(instance);
        } else {
            instance->next = instances;
            instances = instance;
        }
        local_unlock(&lock);
    }
    return result;
}

/* A capture that failed leaves no graph: what it had allocated is gone with it. */
static CUresult ended(CUresult result, CUgraph captured, const CUgraph *graph) {
    CUgraph given = result == CUDA_SUCCESS && graph != NULL ? *graph : NULL;
    if (captured != NULL && captured != given) {
        local_lock(&lock);
        record_t *record = find(captured);
        if (record != NULL) {
            record->graph = given;
            drop_if_unused(record);
        }
        local_unlock(&lock);
    }
    return result;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    FETCH_REAL(cuStreamEndCapture)
    FORWARD_UNLESS_MEMBER(real(stream, graph))
    CUgraph captured = vgpu_capturing_graph(stream);
    return ended(real(stream, graph), captured, graph);
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    FETCH_REAL(cuStreamEndCapture_ptsz)
    FORWARD_UNLESS_MEMBER(real(stream, graph))
    CUgraph captured = vgpu_capturing_graph(stream == NULL ? CU_STREAM_PER_THREAD : stream);
    return ended(real(stream, graph), captured, graph);
}
