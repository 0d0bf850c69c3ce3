/* The records of graphs with memory nodes; graph.h is what the other groups of hooks need of them. */
#ifndef HAMI_SHIM_GRAPHS_H
#define HAMI_SHIM_GRAPHS_H

#include "graph.h"

typedef struct vgpu_graph vgpu_graph_t;

/* Take a record off its graph's handle before the driver may give the handle to another graph; NULL: no record. */
vgpu_graph_t *vgpu_graph_detach(CUgraph graph);

/* Pointers that nodes of the graph were given mean nothing any more. */
void vgpu_graph_forget_pointers(CUgraph graph);

/* After the destruction: drop the record, or put it back under "graph" where the driver refused. */
void vgpu_graph_reattach(vgpu_graph_t *record, CUgraph graph);

/* An executable graph was made from a graph; and: it is destroyed (detach before the call, settle after it). */
void vgpu_graph_instantiated(CUgraph graph, CUgraphExec exec);
vgpu_graph_t *vgpu_graph_exec_detach(CUgraphExec exec);
void vgpu_graph_exec_settle(vgpu_graph_t *record, CUgraphExec exec, CUresult result);

/* Ask the driver what it keeps for later graphs on a card, and charge it. */
void vgpu_graphs_settle(int card);

#endif
