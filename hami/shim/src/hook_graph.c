/*
 * Graphs: their memory nodes, and what ends their life. A graph with such nodes cannot be cloned and has at most one
 * instance at a time (CUDA programming guide, graph memory nodes), so its memory counts once. Launches are not hooked.
 */
#include "graphs.h"
#include "hook.h"

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

static CUresult reserve_node(CUgraph graph, const CUDA_MEM_ALLOC_NODE_PARAMS *params, int *card) {
    bool on_card = params->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    *card = on_card ? vgpu_card_of(params->poolProps.location.id) : VGPU_CARD_NONE;
    return vgpu_graph_reserve(graph, *card, params->bytesize);
}

static CUresult finish_node(CUresult result, CUgraph graph, uint64_t bytes, int card, const CUdeviceptr *pointer) {
    vgpu_graph_finish(graph, card, bytes, result == CUDA_SUCCESS ? *pointer : 0);
    return result;
}

static CUresult finish_free(CUresult result, CUdeviceptr pointer) {
    if (vgpu_enter()) {
        vgpu_graph_freed(pointer, result);
    }
    return result;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t num_deps,
                               CUdeviceptr dptr) {
    FETCH_REAL(cuGraphAddMemFreeNode)
    return finish_free(real(node, graph, deps, num_deps, dptr), dptr);
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
    CUresult refusal = reserve_node(graph, params, &card);
    if (refusal != CUDA_SUCCESS) {
        return refusal;
    }
    return finish_node(real(node, graph, deps, num_deps, params), graph, bytes, card, &params->dptr);
}

#define ADD_NODE(call)                                                                                                 \
    do {                                                                                                               \
        if (params != NULL && params->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {                                           \
            return finish_free(call, params->free.dptr);                                                               \
        }                                                                                                              \
        if (params == NULL || params->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) {                                          \
            return call;                                                                                               \
        }                                                                                                              \
        FORWARD_UNLESS_COUNTING(call)                                                                                  \
        int card;                                                                                                      \
        uint64_t bytes = params->alloc.bytesize;                                                                       \
        CUresult refusal = reserve_node(graph, &params->alloc, &card);                                                 \
        if (refusal != CUDA_SUCCESS) {                                                                                 \
            return refusal;                                                                                            \
        }                                                                                                              \
        return finish_node(call, graph, bytes, card, &params->alloc.dptr);                                             \
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

CUresult cuGraphDestroy(CUgraph graph) {
    FETCH_REAL(cuGraphDestroy)
    FORWARD_UNLESS_MEMBER(real(graph))
    vgpu_graph_t *record = vgpu_graph_detach(graph);
    if (record != NULL) {
        vgpu_graph_forget_pointers(graph);
    }
    CUresult result = real(graph);
    vgpu_graph_reattach(record, result == CUDA_SUCCESS ? NULL : graph);
    return result;
}

static CUresult instantiated(CUresult result, CUgraph graph, const CUgraphExec *exec) {
    if (result == CUDA_SUCCESS && exec != NULL && vgpu_enter()) {
        vgpu_graph_instantiated(graph, *exec);
    }
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
    vgpu_graph_t *record = vgpu_graph_exec_detach(exec);
    CUresult result = real(exec);
    vgpu_graph_exec_settle(record, exec, result);
    return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice dev) {
    FETCH_REAL(cuDeviceGraphMemTrim)
    CUresult result = real(dev);
    if (result == CUDA_SUCCESS && vgpu_enter()) {
        vgpu_graphs_settle(vgpu_card_of(dev));
    }
    return result;
}

/* A capture that failed leaves no graph: what it had allocated is gone with it. */
static CUresult ended(CUresult result, vgpu_graph_t *record, const CUgraph *graph) {
    vgpu_graph_reattach(record, result == CUDA_SUCCESS && graph != NULL ? *graph : NULL);
    return result;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    FETCH_REAL(cuStreamEndCapture)
    FORWARD_UNLESS_MEMBER(real(stream, graph))
    vgpu_graph_t *record = vgpu_graph_detach(vgpu_capturing_graph(stream));
    return ended(real(stream, graph), record, graph);
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    FETCH_REAL(cuStreamEndCapture_ptsz)
    FORWARD_UNLESS_MEMBER(real(stream, graph))
    vgpu_graph_t *record = vgpu_graph_detach(vgpu_capturing_graph(stream == NULL ? CU_STREAM_PER_THREAD : stream));
    return ended(real(stream, graph), record, graph);
}
