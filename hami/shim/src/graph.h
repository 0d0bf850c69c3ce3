/*
 * Memory that graphs hold through allocation nodes, built by hand or captured from a stream.
 *
 * What is freed inside a graph serves its later nodes, so a graph is charged with its peak. After the graph is gone the
 * driver keeps the memory for the next one until it is trimmed; that is charged as well.
 */
#ifndef HAMI_SHIM_GRAPH_H
#define HAMI_SHIM_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_min.h"

/* The graph a stream captures into; NULL while it does not capture. */
CUgraph vgpu_capturing_graph(CUstream stream);

/* Before a node is added: reserve what the graph's peak grows by. */
CUresult vgpu_graph_reserve(CUgraph graph, int card, uint64_t bytes);

/* After it was added: the node's pointer, or 0 when the driver refused. */
void vgpu_graph_finish(CUgraph graph, int card, uint64_t bytes, CUdeviceptr pointer);

/* A free of the pointer was added to a graph. */
void vgpu_graph_freed(CUdeviceptr pointer, CUresult result);

/* Let the driver give back what it keeps for later graphs; true if there was any. */
bool vgpu_graphs_trim(void);

#endif
