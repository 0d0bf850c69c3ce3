/* The share by every version of NVML's memory and process calls, found by dlsym as nvidia-smi does. JSON on one line:
 * memory v1 and v2 (total, used, free), then (pid, bytes) of the first process by each call. */
#include "nvml_min.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOM 64

static void *library;

static void *find(const char *name) {
    void *address = dlsym(library, name);
    if (address == NULL) {
        printf("no %s\n", name);
        exit(1);
    }
    return address;
}

#define CALL(name, ...)                                                                                                \
    do {                                                                                                               \
        nvmlReturn_t result_ = ((__typeof__(&name))find(#name))(__VA_ARGS__);                                          \
        if (result_ != NVML_SUCCESS) {                                                                                 \
            printf("%s -> %d\n", #name, result_);                                                                      \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define PROCESSES(name, type)                                                                                          \
    do {                                                                                                               \
        type infos[ROOM];                                                                                              \
        unsigned int count = ROOM;                                                                                     \
        memset(infos, 0, sizeof infos);                                                                                \
        CALL(name, device, &count, infos);                                                                             \
        printf(", \"%s\": [%u, %u, %llu]", #name, count, infos[0].pid, infos[0].usedGpuMemory);                        \
    } while (0)

int main(void) {
    nvmlDevice_t device;
    nvmlMemory_t memory;
    nvmlMemory_v2_t memory2 = {.version = NVML_MEMORY_V2};
    nvmlProcessDetail_v1_t details[ROOM] = {0};
    nvmlProcessDetailList_v1_t list = {.version = (unsigned int)(sizeof list | (1U << 24)),
                                       .numProcArrayEntries = ROOM};
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    list.procArray = details;
    CALL(nvmlInit_v2);
    CALL(nvmlDeviceGetHandleByIndex_v2, 0, &device);
    CALL(nvmlDeviceGetMemoryInfo, device, &memory);
    CALL(nvmlDeviceGetMemoryInfo_v2, device, &memory2);
    printf("{\"v1\": [%llu, %llu, %llu]", memory.total, memory.used, memory.free);
    printf(", \"v2\": [%llu, %llu, %llu]", memory2.total, memory2.used + memory2.reserved, memory2.free);
    PROCESSES(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t);
    PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t);
    PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_v2_t);
    PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t);
    PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t);
    PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t);
    PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t);
    PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t);
    PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t);
    CALL(nvmlDeviceGetRunningProcessDetailList, device, &list);
    printf(", \"list\": [%u, %u, %llu]}\n", list.numProcArrayEntries, details[0].pid, details[0].usedGpuMemory);
    return 0;
}
