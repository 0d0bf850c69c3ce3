/* Errors of the stand-in cards, as NVML tells them: lines that a test appends to the book's path + ".events".
 *
 *   xid 0 79      a critical error of card 0; ecc2 and ecc1 are memory errors of two bits and of one
 *   xid -1 79     one of a card that nobody knows
 *   remap 1       from now on card 1 has a memory row that could not be remapped
 */
#include "card.h"
#include "config.h"
#include "nvml_min.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POLL_US 2000

enum { SINGLE_BIT = 1, DOUBLE_BIT = 2, CRITICAL = 8, TIMEOUT = 10 };

struct set {
    long read; /* how far in the file */
    unsigned long long wanted[FAKE_MAX_CARDS];
};

typedef struct set *nvmlEventSet_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType;
    unsigned long long eventData;
    unsigned int gpuInstanceId;
    unsigned int computeInstanceId;
} nvmlEventData_t;

NVMLAPI nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set);
NVMLAPI nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set);
NVMLAPI nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types);
NVMLAPI nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set);
NVMLAPI nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms);
NVMLAPI nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
                                               unsigned int *uncorrectable, unsigned int *pending,
                                               unsigned int *failed);

static int index_of(nvmlDevice_t device) {
    for (int i = 0; i < fake_visible_count(); i++) {
        if ((const void *)fake_visible_card(i, NULL) == (const void *)device) {
            return i;
        }
    }
    return -1;
}

static FILE *open_events(void) {
    char path[sizeof fake_config()->state_path + sizeof ".events"];
    snprintf(path, sizeof path, "%s.events", fake_config()->state_path);
    return fopen(path, "re");
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    FAKE_ENTER("nvmlEventSetCreate");
    *set = calloc(1, sizeof **set);
    return *set == NULL ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    free(set);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
    FAKE_ENTER("nvmlDeviceGetSupportedEventTypes");
    *types = SINGLE_BIT | DOUBLE_BIT | CRITICAL;
    return index_of(device) < 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    FAKE_ENTER("nvmlDeviceRegisterEvents");
    int index = index_of(device);
    if (index < 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    set->wanted[index] = types;
    return NVML_SUCCESS;
}

static unsigned long long type_of(const char *kind) {
    return strcmp(kind, "xid") == 0 ? CRITICAL : strcmp(kind, "ecc2") == 0 ? DOUBLE_BIT : strcmp(kind, "ecc1") == 0;
}

/* Takes the next line that somebody waits for; false at the end of the file. */
static bool next_event(FILE *file, nvmlEventSet_t set, nvmlEventData_t *data) {
    char kind[8];
    int index;
    unsigned long long number;
    char line[128];
    fseek(file, set->read, SEEK_SET);
    while (fgets(line, sizeof line, file) != NULL && strchr(line, '\n') != NULL) {
        set->read = ftell(file);
        number = 0;
        if (sscanf(line, "%7s %d %llu", kind, &index, &number) < 2 || index >= fake_visible_count()) {
            continue;
        }
        unsigned long long type = type_of(kind);
        if (type != 0 && (index < 0 || (set->wanted[index] & type) != 0)) {
            nvmlDevice_t device = index < 0 ? NULL : (nvmlDevice_t)fake_visible_card(index, NULL);
            *data = (nvmlEventData_t){.device = device, .eventType = type, .eventData = number};
            data->gpuInstanceId = data->computeInstanceId = 0xffffffffu;
            return true;
        }
    }
    return false;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    FAKE_ENTER("nvmlEventSetWait_v2");
    for (long left_us = timeout_ms * 1000L; left_us >= 0; left_us -= POLL_US) {
        FILE *file = open_events();
        bool found = file != NULL && next_event(file, set, data);
        if (file != NULL) {
            fclose(file);
        }
        if (found) {
            return NVML_SUCCESS;
        }
        usleep(POLL_US);
    }
    return TIMEOUT;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                       unsigned int *pending, unsigned int *failed) {
    FAKE_ENTER("nvmlDeviceGetRemappedRows");
    int wanted = index_of(device);
    *correctable = *uncorrectable = *pending = *failed = 0;
    FILE *file = open_events();
    char line[128];
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        int index;
        *failed |= sscanf(line, "remap %d", &index) == 1 && index == wanted;
    }
    if (file != NULL) {
        fclose(file);
    }
    return wanted < 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}
