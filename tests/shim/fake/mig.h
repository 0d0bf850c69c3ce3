/* MIG of the stand-in library: its own functions are in mig.c, what nvml.c asks about MIG handles is here. */
#ifndef FAKE_MIG_H
#define FAKE_MIG_H

#include "card.h"
#include "nvml_min.h"

#include <stdbool.h>

enum { FAKE_NVML_ERROR_RESET_REQUIRED = 16, FAKE_NVML_ERROR_IN_USE = 19, FAKE_NVML_ERROR_INSUFFICIENT_RESOURCES = 23 };

typedef struct nvmlGpuInstance_st *nvmlGpuInstance_t;
typedef struct nvmlComputeInstance_st *nvmlComputeInstance_t;
typedef struct {
    unsigned int start;
    unsigned int size;
} nvmlPlacement_t;
typedef struct {
    unsigned int version;
    unsigned int id;
    unsigned int isP2pSupported;
    unsigned int sliceCount;
    unsigned int instanceCount;
    unsigned int multiprocessorCount;
    unsigned int copyEngineCount;
    unsigned int decoderCount;
    unsigned int encoderCount;
    unsigned int jpegCount;
    unsigned int ofaCount;
    unsigned long long memorySizeMB;
    char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;
typedef struct {
    unsigned int version;
    unsigned int id;
    unsigned int sliceCount;
    unsigned int instanceCount;
    unsigned int multiprocessorCount;
    unsigned int sharedEngines[5];
    char name[96];
} nvmlComputeInstanceProfileInfo_v2_t;
typedef struct {
    nvmlDevice_t device;
    unsigned int id;
    unsigned int profileId;
    nvmlPlacement_t placement;
} nvmlGpuInstanceInfo_t;
typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpuInstance;
    unsigned int id;
    unsigned int profileId;
    nvmlPlacement_t placement;
} nvmlComputeInstanceInfo_t;

typedef struct {
    unsigned int multiprocessorCount;
    unsigned int sharedEngines[5];
    unsigned int gpuInstanceSliceCount;
    unsigned int computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

/* Id of a MIG device; NULL for what is no handle of one. */
const char *fake_mig_uuid(nvmlDevice_t device);
/* Whether FAKE_MIG_IN_USE, ids between commas, names it: a process then uses it. */
bool fake_mig_in_use(const char *uuid);

NVMLAPI nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending);
NVMLAPI nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *status);
NVMLAPI nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count);
NVMLAPI nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig);
NVMLAPI nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id);
NVMLAPI nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id);
NVMLAPI nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes);
NVMLAPI nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                          nvmlGpuInstanceProfileInfo_v2_t *info);
NVMLAPI nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int profile_id,
                                                                   nvmlPlacement_t *placements, unsigned int *count);
NVMLAPI nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profile_id,
                                                              const nvmlPlacement_t *placement,
                                                              nvmlGpuInstance_t *instance);
NVMLAPI nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profile_id,
                                               nvmlGpuInstance_t *instances, unsigned int *count);
NVMLAPI nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance);
NVMLAPI nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info);
NVMLAPI nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance);
NVMLAPI nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int profile,
                                                                   unsigned int engines,
                                                                   nvmlComputeInstanceProfileInfo_v2_t *info);
NVMLAPI nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned int profile_id,
                                                          nvmlComputeInstance_t *compute);
NVMLAPI nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int profile_id,
                                                        nvmlComputeInstance_t *found, unsigned int *count);
NVMLAPI nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info);
NVMLAPI nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute);

#endif
