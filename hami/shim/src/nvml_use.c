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

bool vgpu_nvml_used(const char *uuid, uint64_t *bytes) {
    __typeof__(&nvmlDeviceGetMemoryInfo) get = REAL(nvmlDeviceGetMemoryInfo);
    nvmlDevice_t device;
    nvmlMemory_t memory;
    if (get == NULL || !by_uuid(uuid, &device) || get(device, &memory) != NVML_SUCCESS) {
        return false;
    }
    *bytes = memory.used;
    return true;
}
