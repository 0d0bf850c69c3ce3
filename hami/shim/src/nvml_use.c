#include "nvml_use.h"

#include <stddef.h>

#include "driver.h"

bool vgpu_nvml_start(void) {
    __typeof__(&nvmlInit_v2) init = DRIVER(nvmlInit_v2);
    return init != NULL && init() == NVML_SUCCESS;
}

void vgpu_nvml_stop(void) {
    __typeof__(&nvmlShutdown) shutdown = DRIVER(nvmlShutdown);
    if (shutdown != NULL) {
        shutdown();
    }
}

static bool by_uuid(const char *uuid, nvmlDevice_t *device) {
    __typeof__(&nvmlDeviceGetHandleByUUID) get = DRIVER(nvmlDeviceGetHandleByUUID);
    return get != NULL && get(uuid, device) == NVML_SUCCESS;
}

int vgpu_nvml_index(const char *uuid) {
    __typeof__(&nvmlDeviceGetIndex) get_index = DRIVER(nvmlDeviceGetIndex);
    nvmlDevice_t device;
    unsigned int index;
    bool found = get_index != NULL && by_uuid(uuid, &device) && get_index(device, &index) == NVML_SUCCESS;
    return found ? (int)index : -1;
}

int vgpu_nvml_processes(const char *uuid, vgpu_nvml_process_t out[VGPU_NVML_PROCESSES]) {
    __typeof__(&nvmlDeviceGetComputeRunningProcesses_v3) list = REAL(nvmlDeviceGetComputeRunningProcesses_v3);
    nvmlProcessInfo_v2_t infos[VGPU_NVML_PROCESSES];
    unsigned int count = VGPU_NVML_PROCESSES;
    nvmlDevice_t device;
    if (list == NULL || !by_uuid(uuid, &device) || list(device, &count, infos) != NVML_SUCCESS) {
        return -1;
    }
    for (unsigned int i = 0; i < count; i++) {
        out[i] = (vgpu_nvml_process_t){infos[i].pid, infos[i].usedGpuMemory};
    }
    return (int)count;
}
