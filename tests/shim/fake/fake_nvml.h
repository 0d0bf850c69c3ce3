/* NVML symbols of the stand-in library that the shim's header leaves out. */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H

#include "nvml_min.h"

NVMLAPI nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor);
NVMLAPI nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node);
NVMLAPI nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, int *level);
NVMLAPI nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, int *active);
NVMLAPI nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *out);
NVMLAPI nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *out);
NVMLAPI nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *out);
NVMLAPI nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *out);
NVMLAPI nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned int *out);
NVMLAPI nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned int *out);
NVMLAPI nvmlReturn_t nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned int *out);
NVMLAPI nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *out);
NVMLAPI nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *out);

#endif
