/* Memory that graphs hold through allocation nodes, built by hand or captured from a stream. */
#ifndef HAMI_SHIM_GRAPH_H
#define HAMI_SHIM_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_min.h"

/* Note bytes (already reserved) that a graph holds from now on; false: no memory for the record. */
bool vgpu_graph_add(CUgraph graph, int card, uint64_t bytes);

/* The graph a stream captures into; NULL while it does not capture. */
CUgraph vgpu_capturing_graph(CUstream stream);

#endif
