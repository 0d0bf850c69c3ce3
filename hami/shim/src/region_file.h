/* The file behind the shared region: opening, size, first content. */
#ifndef HAMI_SHIM_REGION_FILE_H
#define HAMI_SHIM_REGION_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "region.h"

/* Open for reading and writing, creating it for all users if needed; -1 with *why set. */
int vgpu_region_open(const char *path, const char **why);

/* Give the file its full size, with blocks reserved; false with *why set. */
bool vgpu_region_grow(int fd, const char **why);

/* Does the mapped file have our layout? */
bool vgpu_region_valid(const vgpu_region_t *region);

/* Start afresh; the caller holds the init lock and nobody is alive. */
void vgpu_region_init(vgpu_region_t *region, int32_t priority);

/* A read-only mapping for processes that only look (nvidia-smi, vgpu-info): NULL if there is no valid region. */
const vgpu_region_t *vgpu_region_view(const char *path);

#endif
