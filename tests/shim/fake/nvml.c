/* The stand-in libnvidia-ml.so.1: reads the same cards and the same book as the stand-in driver. Handles are addresses
 * of cards; NVML does not know CUDA_VISIBLE_DEVICES. */
#include "card.h"
#include "fake_nvml.h"
#include "mig.h"
#include "nvml_min.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static atomic_int users;

#define READY()                                                                                                        \
    do {                                                                                                               \
        if (atomic_load(&users) == 0) {                                                                                \
            return NVML_ERROR_UNINITIALIZED;                                                                           \
        }                                                                                                              \
    } while (0)

static const struct fake_card *card_of(nvmlDevice_t device, int *machine, unsigned int *index) {
    for (int i = 0; i < fake_visible_count(); i++) {
        int at = 0;
        const struct fake_card *card = fake_visible_card(i, &at);
        if ((const void *)card == (const void *)device) {
            if (machine != NULL) {
                *machine = at;
            }
            if (index != NULL) {
                *index = (unsigned int)i;
            }
            return card;
        }
    }
    return NULL;
}

#define KNOWN_CARD()                                                                                                   \
    READY();                                                                                                           \
    if (card_of(device, NULL, NULL) == NULL) {                                                                         \
        return NVML_ERROR_INVALID_ARGUMENT;                                                                            \
    }

#define CARD(machine, index)                                                                                           \
    READY();                                                                                                           \
    const struct fake_card *card = card_of(device, machine, index);                                                    \
    if (card == NULL) {                                                                                                \
        return NVML_ERROR_INVALID_ARGUMENT;                                                                            \
    }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    FAKE_ENTER("nvmlInitWithFlags");
    atomic_fetch_add(&users, 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void) {
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void) {
    READY();
    atomic_fetch_sub(&users, 1);
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case FAKE_NVML_ERROR_IN_USE:
        return "In use by another client";
    case FAKE_NVML_ERROR_INSUFFICIENT_RESOURCES:
        return "Insufficient Resources";
    default:
        return "Error";
    }
}

static nvmlReturn_t put_text(char *to, unsigned int length, const char *text) {
    if (to == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return (unsigned int)snprintf(to, length, "%s", text) >= length ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    FAKE_ENTER("nvmlSystemGetDriverVersion");
    READY();
    return put_text(version, length, fake_driver_version());
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    char text[48];
    snprintf(text, sizeof text, "12.%s", fake_driver_version());
    return put_text(version, length, text);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = fake_nvml_cuda_version();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    char path[48];
    char text[256] = "";
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return NVML_ERROR_NOT_FOUND;
    }
    if (fgets(text, sizeof text, file) != NULL) {
        text[strcspn(text, "\n")] = '\0';
    }
    fclose(file);
    return put_text(name, length, text);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    FAKE_ENTER("nvmlDeviceGetCount_v2");
    READY();
    *count = (unsigned int)fake_visible_count();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) {
    return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    READY();
    FAKE_ENTER("nvmlDeviceGetHandleByIndex_v2");
    *device = (nvmlDevice_t)fake_visible_card((int)index, NULL);
    return *device == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    READY();
    for (int i = 0; i < fake_visible_count(); i++) {
        if (strcmp(fake_visible_card(i, NULL)->uuid, uuid) == 0) {
            return nvmlDeviceGetHandleByIndex_v2((unsigned int)i, device);
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

/* Domains are written with four or eight digits; the last twelve characters are the same. */
static int same_bus(const char *left, const char *right) {
    size_t left_length = strlen(left);
    size_t right_length = strlen(right);
    return left_length >= 12 && right_length >= 12 &&
           strncasecmp(left + left_length - 12, right + right_length - 12, 12) == 0;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    READY();
    for (int i = 0; i < fake_visible_count(); i++) {
        if (same_bus(fake_visible_card(i, NULL)->pci, bus_id)) {
            return nvmlDeviceGetHandleByIndex_v2((unsigned int)i, device);
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    FAKE_ENTER("nvmlDeviceGetName");
    CARD(NULL, NULL);
    return put_text(name, length, card->name);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    FAKE_ENTER("nvmlDeviceGetUUID");
    const char *mig = fake_mig_uuid(device);
    if (mig != NULL) {
        return put_text(uuid, length, mig);
    }
    CARD(NULL, NULL);
    return put_text(uuid, length, card->uuid);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    READY();
    return card_of(device, NULL, index) != NULL ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor) {
    FAKE_ENTER("nvmlDeviceGetMinorNumber");
    CARD(NULL, NULL);
    *minor = (unsigned int)card->minor;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    FAKE_ENTER("nvmlDeviceGetPciInfo_v3");
    CARD(NULL, NULL);
    memset(pci, 0, sizeof *pci);
    sscanf(card->pci, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff,
             pci->device & 0x1f);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus & 0xff, pci->device & 0x1f);
    pci->pciDeviceId = 0x20b010de;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return nvmlDeviceGetPciInfo_v3(device, pci);
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return nvmlDeviceGetPciInfo_v3(device, pci);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    FAKE_ENTER("nvmlDeviceGetMemoryInfo");
    int machine;
    CARD(&machine, NULL);
    if (card->memory_query_unsupported) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    memory->total = card->memory_bytes;
    memory->free = fake_room(machine);
    memory->used = memory->total - memory->free;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    FAKE_ENTER("nvmlDeviceGetMemoryInfo_v2");
    int machine;
    CARD(&machine, NULL);
    if (memory->version != NVML_MEMORY_V2) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    if (card->memory_query_unsupported) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    memory->total = card->memory_bytes;
    memory->reserved = card->reserved_bytes;
    memory->free = fake_room(machine);
    memory->used = memory->total - memory->reserved - memory->free;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    CARD(NULL, NULL);
    *memory = (nvmlBAR1Memory_t){.bar1Total = card->memory_bytes, .bar1Free = card->memory_bytes};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    FAKE_ENTER("nvmlDeviceGetUtilizationRates");
    CARD(NULL, NULL);
    *utilization = (nvmlUtilization_t){.gpu = (unsigned int)card->utilization_percent};
    return NVML_SUCCESS;
}

static nvmlReturn_t list(nvmlDevice_t device, unsigned int *count, struct fake_process *found) {
    int machine;
    FAKE_ENTER("nvmlDeviceGetComputeRunningProcesses");
    READY();
    const char *mig = fake_mig_uuid(device);
    if (mig != NULL) {
        found[0] = (struct fake_process){.pid = 4242, .bytes = FAKE_MIB};
        unsigned int room = *count;
        *count = fake_mig_in_use(mig);
        return room < *count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    }
    if (card_of(device, &machine, NULL) == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    int total = fake_processes(machine, found, FAKE_MAX_PROCESSES);
    unsigned int room = *count;
    *count = (unsigned int)total;
    return room < (unsigned int)total ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                  nvmlProcessInfo_v1_t *infos) {
    struct fake_process found[FAKE_MAX_PROCESSES];
    nvmlReturn_t result = list(device, count, found);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < *count; i++) {
        infos[i] = (nvmlProcessInfo_v1_t){.pid = (unsigned int)found[i].pid, .usedGpuMemory = found[i].bytes};
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v2_t *infos) {
    struct fake_process found[FAKE_MAX_PROCESSES];
    nvmlReturn_t result = list(device, count, found);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < *count; i++) {
        infos[i] = (nvmlProcessInfo_v2_t){.pid = (unsigned int)found[i].pid,
                                          .usedGpuMemory = found[i].bytes,
                                          .gpuInstanceId = 0xffffffffu,
                                          .computeInstanceId = 0xffffffffu};
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v2_t *infos) {
    return nvmlDeviceGetComputeRunningProcesses_v2(device, count, infos);
}

static nvmlReturn_t nobody(nvmlDevice_t device, unsigned int *count) {
    KNOWN_CARD();
    *count = 0;
    return NVML_SUCCESS;
}

#define NOBODY(function, type)                                                                                         \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, type *infos) {                                     \
        (void)infos;                                                                                                   \
        return nobody(device, count);                                                                                  \
    }

NOBODY(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list_out) {
    struct fake_process found[FAKE_MAX_PROCESSES];
    nvmlReturn_t result = list(device, &list_out->numProcArrayEntries, found);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < list_out->numProcArrayEntries; i++) {
        list_out->procArray[i] = (nvmlProcessDetail_v1_t){.pid = (unsigned int)found[i].pid,
                                                          .usedGpuMemory = found[i].bytes,
                                                          .gpuInstanceId = 0xffffffffu,
                                                          .computeInstanceId = 0xffffffffu};
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    CARD(NULL, NULL);
    *major = card->cc_major;
    *minor = card->cc_minor;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node) {
    CARD(NULL, NULL);
    *node = (unsigned int)card->numa;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, int *level) {
    CARD(NULL, NULL);
    const struct fake_card *second = card_of(other, NULL, NULL);
    if (second == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *level = card == second ? 0 : card->numa == second->numa ? 30 : 50; /* internal, host bridge, system */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, int *active) {
    (void)link;
    (void)active;
    KNOWN_CARD();
    return NVML_ERROR_NOT_SUPPORTED;
}

/* Readings that nobody's decision depends on, so that tools which show them get a number. */
#define READING(function, value)                                                                                       \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *out) {                                                    \
        KNOWN_CARD();                                                                                                  \
        *out = (value);                                                                                                \
        return NVML_SUCCESS;                                                                                           \
    }

READING(nvmlDeviceGetPowerUsage, 65000)
READING(nvmlDeviceGetEnforcedPowerLimit, 400000)
READING(nvmlDeviceGetPowerManagementLimit, 400000)
READING(nvmlDeviceGetComputeMode, 0)
READING(nvmlDeviceGetPersistenceMode, 1)
READING(nvmlDeviceGetFanSpeed, 30)
READING(nvmlDeviceGetMultiGpuBoard, 0)
READING(nvmlDeviceGetArchitecture, 7)

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *out) {
    (void)sensor;
    KNOWN_CARD();
    *out = 41;
    return NVML_SUCCESS;
}
