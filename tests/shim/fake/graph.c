/* Graphs of the stand-in driver. Memory nodes get an address when they are added and memory when the graph is first
 * launched; the device keeps that memory after the executable graph is gone, until cuDeviceGraphMemTrim. */
#include "driver.h"

#include <stdlib.h>

struct CUgraphNode_st {
    CUgraphNodeType type;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;
    int machine;
    CUgraph child;
    struct CUgraphNode_st *next;
};

/* What was freed inside a graph serves the later nodes of it: an executable graph needs the peak, not the sum. */
struct CUgraph_st {
    struct CUgraphNode_st *nodes;
    size_t count;
    uint64_t live[FAKE_MAX_CARDS];
    uint64_t peak[FAKE_MAX_CARDS];
};

struct CUgraphExec_st {
    uint64_t bytes[FAKE_MAX_CARDS];
    bool holds_memory;
};

static struct {
    uint64_t active, active_high, reserved, reserved_high;
} graph_memory[FAKE_MAX_CARDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static CUgraphNode node_new(CUgraph graph, CUgraphNodeType type) {
    CUgraphNode node = calloc(1, sizeof *node);
    node->type = type;
    node->next = graph->nodes;
    graph->nodes = node;
    graph->count++;
    return node;
}

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags) {
    (void)flags;
    *graph = calloc(1, sizeof **graph);
    return fake_ready();
}

CUresult cuGraphDestroy(CUgraph graph) {
    FAKE_ENTER("cuGraphDestroy");
    while (graph->nodes != NULL) {
        CUgraphNode next = graph->nodes->next;
        free(graph->nodes);
        graph->nodes = next;
    }
    free(graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroyNode(CUgraphNode node) {
    node->type = CU_GRAPH_NODE_TYPE_EMPTY;
    return CUDA_SUCCESS;
}

static CUgraphNode alloc_node(CUgraph graph, size_t bytes, int machine) {
    size_t span;
    CUgraphNode node = node_new(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    node->machine = machine;
    node->alloc.bytesize = bytes;
    node->alloc.dptr = fake_address(bytes, false, &span);
    graph->live[machine] += fake_round_up(bytes, FAKE_GRANULE);
    graph->peak[machine] = graph->live[machine] > graph->peak[machine] ? graph->live[machine] : graph->peak[machine];
    return node;
}

CUresult fake_graph_add_alloc(CUgraph graph, size_t bytes, int machine, CUdeviceptr *at) {
    *at = alloc_node(graph, bytes, machine)->alloc.dptr;
    return CUDA_SUCCESS;
}

static CUgraphNode free_node(CUgraph graph, CUdeviceptr at) {
    for (CUgraphNode node = graph->nodes; node != NULL; node = node->next) {
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && node->alloc.dptr == at) {
            graph->live[node->machine] -= fake_round_up(node->alloc.bytesize, FAKE_GRANULE);
        }
    }
    CUgraphNode node = node_new(graph, CU_GRAPH_NODE_TYPE_MEM_FREE);
    node->alloc.dptr = at;
    return node;
}

CUresult fake_graph_add_free(CUgraph graph, CUdeviceptr at) {
    free_node(graph, at);
    return CUDA_SUCCESS;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t num_deps,
                                CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    FAKE_ENTER("cuGraphAddMemAllocNode");
    (void)deps, (void)num_deps;
    int machine;
    CUresult result = fake_machine_of(params->poolProps.location.id, &machine);
    if (result != CUDA_SUCCESS || params->bytesize == 0) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    *node = alloc_node(graph, params->bytesize, machine);
    params->dptr = (*node)->alloc.dptr;
    (*node)->alloc = *params;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t num_deps,
                               CUdeviceptr dptr) {
    (void)deps, (void)num_deps;
    *node = free_node(graph, dptr);
    return CUDA_SUCCESS;
}

static CUresult add_node(CUgraphNode *node, CUgraph graph, CUgraphNodeParams *params) {
    if (params->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
        *node = free_node(graph, params->free.dptr);
        return CUDA_SUCCESS;
    }
    if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        return cuGraphAddMemAllocNode(node, graph, NULL, 0, &params->alloc);
    }
    *node = node_new(graph, params->type);
    (*node)->child = params->type == CU_GRAPH_NODE_TYPE_GRAPH ? params->graph.graph : NULL;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t num_deps,
                        CUgraphNodeParams *params) {
    FAKE_ENTER("cuGraphAddNode");
    (void)deps, (void)num_deps;
    return add_node(node, graph, params);
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *edges,
                           size_t num_deps, CUgraphNodeParams *params) {
    FAKE_ENTER("cuGraphAddNode_v2");
    (void)deps, (void)edges, (void)num_deps;
    return add_node(node, graph, params);
}

CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *edges,
                           size_t num_deps, CUgraphNodeParams *params) {
    return cuGraphAddNode_v2(node, graph, deps, edges, num_deps, params);
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *num_nodes) {
    size_t written = 0;
    for (CUgraphNode node = graph->nodes; nodes != NULL && node != NULL && written < *num_nodes; node = node->next) {
        nodes[written++] = node;
    }
    *num_nodes = nodes == NULL ? graph->count : written;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    *type = node->type;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    if (node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *params = node->alloc;
    return CUDA_SUCCESS;
}

static void sum_peaks(CUgraphExec exec, CUgraph graph) {
    for (int card = 0; card < FAKE_MAX_CARDS; card++) {
        exec->bytes[card] += graph->peak[card];
    }
    for (CUgraphNode node = graph->nodes; node != NULL; node = node->next) {
        if (node->child != NULL) {
            sum_peaks(exec, node->child);
        }
    }
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph) {
    if (exec == NULL || graph == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *exec = calloc(1, sizeof **exec);
    sum_peaks(*exec, graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t len) {
    FAKE_ENTER("cuGraphInstantiate");
    (void)error_node, (void)log, (void)len;
    return instantiate(exec, graph);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t len) {
    FAKE_ENTER("cuGraphInstantiate_v2");
    (void)error_node, (void)log, (void)len;
    return instantiate(exec, graph);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    FAKE_ENTER("cuGraphInstantiateWithFlags");
    (void)flags;
    return instantiate(exec, graph);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    FAKE_ENTER("cuGraphInstantiateWithParams");
    params->result_out = 0;
    return instantiate(exec, graph);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    params->result_out = 0;
    return instantiate(exec, graph);
}

static void change_active(int card, uint64_t up, uint64_t down) {
    graph_memory[card].active += up;
    graph_memory[card].active -= down;
    if (graph_memory[card].active > graph_memory[card].active_high) {
        graph_memory[card].active_high = graph_memory[card].active;
    }
}

/* Called with the lock held. */
static bool hold_memory(CUgraphExec exec) {
    for (int card = 0; card < FAKE_MAX_CARDS; card++) {
        uint64_t wanted = graph_memory[card].active + exec->bytes[card];
        uint64_t growth = wanted > graph_memory[card].reserved ? wanted - graph_memory[card].reserved : 0;
        if (growth != 0 && !fake_take(card, growth)) {
            while (card-- > 0) {
                change_active(card, 0, exec->bytes[card]);
            }
            return false;
        }
        graph_memory[card].reserved += growth;
        if (graph_memory[card].reserved > graph_memory[card].reserved_high) {
            graph_memory[card].reserved_high = graph_memory[card].reserved;
        }
        change_active(card, exec->bytes[card], 0);
    }
    return true;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    FAKE_ENTER("cuGraphLaunch");
    (void)stream;
    pthread_mutex_lock(&lock);
    exec->holds_memory = exec->holds_memory || hold_memory(exec);
    CUresult result = exec->holds_memory ? fake_ready() : CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    FAKE_ENTER("cuGraphLaunch_ptsz");
    return cuGraphLaunch(exec, stream);
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    FAKE_ENTER("cuGraphExecDestroy");
    pthread_mutex_lock(&lock);
    for (int card = 0; exec->holds_memory && card < FAKE_MAX_CARDS; card++) {
        change_active(card, 0, exec->bytes[card]);
    }
    pthread_mutex_unlock(&lock);
    free(exec);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice dev) {
    FAKE_ENTER("cuDeviceGraphMemTrim");
    int card;
    CUresult result = fake_machine_of(dev, &card);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&lock);
    fake_give(card, graph_memory[card].reserved - graph_memory[card].active);
    graph_memory[card].reserved = graph_memory[card].active;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice dev, int attribute, void *value) {
    int card;
    CUresult result = fake_machine_of(dev, &card);
    if (result != CUDA_SUCCESS || attribute < 0 || attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    const uint64_t values[] = {[CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT] = graph_memory[card].active,
                               [CU_GRAPH_MEM_ATTR_USED_MEM_HIGH] = graph_memory[card].active_high,
                               [CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT] = graph_memory[card].reserved,
                               [CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH] = graph_memory[card].reserved_high};
    *(uint64_t *)value = values[attribute];
    return CUDA_SUCCESS;
}
