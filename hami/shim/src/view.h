/*
 * The share as shown to programs that only look (nvidia-smi, vgpu-info), and to members alike: no slot is taken,
 * nothing is written, no driver is loaded.
 */
#ifndef HAMI_SHIM_VIEW_H
#define HAMI_SHIM_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "config.h"

typedef struct {
    int32_t pid;
    uint64_t bytes;
} vgpu_process_t;

typedef struct {
    const vgpu_region_t *region; /* NULL: no process has used a card yet */
    int card;                    /* place in the region, -1 unknown */
    uint64_t limit;              /* 0: none */
} vgpu_view_t;

/* Look at a card. nvml_index may be -1. */
vgpu_view_t vgpu_view(const char *uuid, int nvml_index);

/* Bytes in use by living processes of the container. */
uint64_t vgpu_view_used(const vgpu_view_t *view);

/* Fill up to "room" living processes that hold memory of the card; returns how many there are. */
unsigned int vgpu_view_processes(const vgpu_view_t *view, vgpu_process_t *out, unsigned int room);

#endif
