/* Questions to NVML that the shim itself asks. */
#ifndef HAMI_SHIM_NVML_USE_H
#define HAMI_SHIM_NVML_USE_H

#include <stdbool.h>
#include <stdint.h>

/* Start and stop NVML around questions; they count, so the program's own use is not disturbed. */
bool vgpu_nvml_start(void);
void vgpu_nvml_stop(void);

/* Index of a card in NVML's order, which CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER do not change; -1 unknown. */
int vgpu_nvml_index(const char *uuid);

#define VGPU_NVML_PROCESSES 256

typedef struct {
    unsigned int pid;
    uint64_t bytes;
} vgpu_nvml_process_t;

/* Compute processes on a card, under the pids the driver gives; -1 when they cannot be listed or are too many. */
int vgpu_nvml_processes(const char *uuid, vgpu_nvml_process_t out[VGPU_NVML_PROCESSES]);

#endif
