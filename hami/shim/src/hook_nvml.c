/*
 * NVML's memory and process calls show the share of the container: total is the limit, used is what its processes hold,
 * and the processes are its own under the pids it knows. Count, UUIDs, PCI ids and utilisation stay the driver's.
 */
#include <stdint.h>

#include "config.h"
#include "driver.h"
#include "view.h"

#define FETCH_REAL_NVML(symbol)                                                                                        \
    __typeof__(&symbol) real = REAL(symbol);                                                                           \
    if (real == NULL) {                                                                                                \
        return NVML_ERROR_FUNCTION_NOT_FOUND;                                                                          \
    }

static bool look(nvmlDevice_t device, vgpu_view_t *view) {
    char uuid[VGPU_UUID_LEN] = "";
    unsigned int index = 0;
    __typeof__(&nvmlDeviceGetUUID) get_uuid = DRIVER(nvmlDeviceGetUUID);
    __typeof__(&nvmlDeviceGetIndex) get_index = DRIVER(nvmlDeviceGetIndex);
    if (!vgpu_config()->active || get_uuid == NULL || get_uuid(device, uuid, sizeof uuid) != NVML_SUCCESS) {
        return false;
    }
    bool indexed = get_index != NULL && get_index(device, &index) == NVML_SUCCESS;
    *view = vgpu_view(uuid, indexed ? (int)index : -1);
    return view->limit != 0;
}

static uint64_t shown_total(uint64_t limit, uint64_t physical) {
    return limit < physical || vgpu_config()->oversubscribe ? limit : physical;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    FETCH_REAL_NVML(nvmlDeviceGetMemoryInfo)
    vgpu_view_t view;
    nvmlReturn_t result = real(device, memory);
    if (result == NVML_SUCCESS && memory != NULL && look(device, &view)) {
        uint64_t used = vgpu_view_used(&view);
        memory->total = shown_total(view.limit, memory->total);
        memory->used = used < memory->total ? used : memory->total;
        memory->free = memory->total - memory->used;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    FETCH_REAL_NVML(nvmlDeviceGetMemoryInfo_v2)
    vgpu_view_t view;
    nvmlReturn_t result = real(device, memory);
    if (result == NVML_SUCCESS && memory != NULL && look(device, &view)) {
        uint64_t used = vgpu_view_used(&view);
        memory->total = shown_total(view.limit, memory->total);
        memory->used = used < memory->total ? used : memory->total;
        memory->reserved = 0; /* the card's own reserve is not part of a share; total = reserved + used + free */
        memory->free = memory->total - memory->used;
    }
    return result;
}

/* NVML's protocol: *count is room in, number out; too little room is an error that says how much is needed. */
static nvmlReturn_t give(const vgpu_view_t *view, unsigned int *count, vgpu_process_t *processes, const void *infos) {
    unsigned int room = *count;
    *count = vgpu_view_processes(view, processes, VGPU_MAX_SLOTS);
    if (*count > VGPU_MAX_SLOTS) {
        *count = VGPU_MAX_SLOTS;
    }
    return *count > 0 && (*count > room || infos == NULL) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t give_v1(const vgpu_view_t *view, unsigned int *count, nvmlProcessInfo_v1_t *infos) {
    vgpu_process_t processes[VGPU_MAX_SLOTS];
    nvmlReturn_t result = give(view, count, processes, infos);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < *count; i++) {
        infos[i] = (nvmlProcessInfo_v1_t){(unsigned int)processes[i].pid, processes[i].bytes};
    }
    return result;
}

static nvmlReturn_t give_v2(const vgpu_view_t *view, unsigned int *count, nvmlProcessInfo_v2_t *infos) {
    vgpu_process_t processes[VGPU_MAX_SLOTS];
    nvmlReturn_t result = give(view, count, processes, infos);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < *count; i++) {
        infos[i] = (nvmlProcessInfo_v2_t){(unsigned int)processes[i].pid, processes[i].bytes, UINT32_MAX, UINT32_MAX};
    }
    return result;
}

/* Processes of other containers are none of the program's business: graphics and MPS lists are empty. */
static nvmlReturn_t give_none(unsigned int *count) {
    *count = 0;
    return NVML_SUCCESS;
}

/* An error other than "too little room" (not initialised, lost card) is the program's to see. */
static bool answered(nvmlReturn_t result) {
    return result == NVML_SUCCESS || result == NVML_ERROR_INSUFFICIENT_SIZE;
}

#define PROCESS_LIST(symbol, type, answer)                                                                             \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *count, type *infos) {                                       \
        FETCH_REAL_NVML(symbol)                                                                                        \
        unsigned int room = count == NULL ? 0 : *count;                                                                \
        vgpu_view_t view;                                                                                              \
        nvmlReturn_t result = real(device, count, infos);                                                              \
        if (!answered(result) || count == NULL || !look(device, &view)) {                                              \
            return result;                                                                                             \
        }                                                                                                              \
        *count = room;                                                                                                 \
        return answer;                                                                                                 \
    }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, give_v1(&view, count, infos))
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, give_v2(&view, count, infos))
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_v2_t, give_v2(&view, count, infos))
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, give_none(count))
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, give_none(count))
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t, give_none(count))
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, give_none(count))
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, give_none(count))
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t, give_none(count))

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list) {
    FETCH_REAL_NVML(nvmlDeviceGetRunningProcessDetailList)
    vgpu_process_t processes[VGPU_MAX_SLOTS];
    unsigned int room = list == NULL ? 0 : list->numProcArrayEntries;
    vgpu_view_t view;
    nvmlReturn_t result = real(device, list);
    if (!answered(result) || list == NULL || !look(device, &view)) {
        return result;
    }
    list->numProcArrayEntries = room;
    if (list->mode != 0) {
        return give_none(&list->numProcArrayEntries);
    }
    result = give(&view, &list->numProcArrayEntries, processes, list->procArray);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < list->numProcArrayEntries; i++) {
        list->procArray[i] =
            (nvmlProcessDetail_v1_t){(unsigned int)processes[i].pid, processes[i].bytes, UINT32_MAX, UINT32_MAX, 0};
    }
    return result;
}
