/* MIG of the stand-in library: the profiles of an A100 of 40 GB on every card that has MIG, instances as they are made.
 * They are kept in the book's path + ".mig", so that they outlive the process, as a driver's do. */
#include "mig.h"
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PLACES    7
#define MAX_INSTANCES 7

struct profile {
    unsigned int number; /* NVML_GPU_INSTANCE_PROFILE_… */
    unsigned int id;
    unsigned int slices;
    unsigned int memory_mib;
    unsigned int size;
    unsigned int places;
    unsigned int starts[MAX_PLACES];
};
static const struct profile profiles[] = {
    {0, 19, 1, 4864, 1, 7, {0, 1, 2, 3, 4, 5, 6}},
    {1, 14, 2, 9984, 2, 3, {0, 2, 4}},
    {2, 9, 3, 20096, 4, 2, {0, 4}},
    {3, 5, 4, 20096, 4, 1, {0}},
    {4, 0, 7, 40448, 8, 1, {0}},
    {7, 20, 1, 4864, 1, 7, {0, 1, 2, 3, 4, 5, 6}},
};
/* Number of slices of each compute instance profile, by its number; ids are the numbers. */
static const unsigned int compute_slices[] = {1, 2, 3, 4, 7, 8, 6};
#define COMPUTE_PROFILES (sizeof compute_slices / sizeof *compute_slices)

struct compute {
    bool exists;
    unsigned int id;
    unsigned int profile_id;
    char uuid[96];
};
struct instance {
    bool exists;
    unsigned int id;
    unsigned int profile_id;
    unsigned int start;
    unsigned int size;
    struct compute compute[MAX_INSTANCES];
};
struct card_state {
    bool known;
    bool enabled;
    struct instance instances[MAX_INSTANCES];
};
static struct card_state cards[FAKE_MAX_CARDS];

static FILE *open_state(const char *mode) {
    char path[520];
    snprintf(path, sizeof path, "%s.mig", fake_config()->state_path);
    return fopen(path, mode);
}

static void load(void) {
    FILE *file = open_state("re");
    if (file != NULL) {
        if (fread(cards, sizeof cards, 1, file) != 1) {
            memset(cards, 0, sizeof cards);
        }
        fclose(file);
    }
}

static void save(void) {
    FILE *file = open_state("we");
    if (file != NULL) {
        fwrite(cards, sizeof cards, 1, file);
        fclose(file);
    }
}

static int index_of(nvmlDevice_t device) {
    for (int i = 0; i < fake_visible_count(); i++) {
        int machine = 0;
        if ((const void *)fake_visible_card(i, &machine) == (const void *)device) {
            return machine;
        }
    }
    return -1;
}

/* State of a card that has MIG, read anew; NULL for others. */
static struct card_state *state_of(nvmlDevice_t device) {
    int index = index_of(device);
    if (index < 0 || fake_config()->cards[index].mig == FAKE_MIG_UNSUPPORTED) {
        return NULL;
    }
    load();
    if (!cards[index].known) {
        cards[index].known = true;
        cards[index].enabled = fake_config()->cards[index].mig == FAKE_MIG_ON;
    }
    return &cards[index];
}

#define STATE()                                                                                                        \
    struct card_state *state = state_of(device);                                                                       \
    if (state == NULL) {                                                                                               \
        return index_of(device) < 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;                          \
    }

static const struct profile *profile_by_id(unsigned int id) {
    for (size_t i = 0; i < sizeof profiles / sizeof *profiles; i++) {
        if (profiles[i].id == id) {
            return &profiles[i];
        }
    }
    return NULL;
}

static bool owns(const struct card_state *state, const void *handle) {
    return (const char *)handle >= (const char *)state && (const char *)handle < (const char *)(state + 1);
}

/* The card and GPU instance of a handle to an instance or a part of one; false for other handles. */
static bool find(const void *handle, int *card, struct instance **instance) {
    for (int i = 0; i < FAKE_MAX_CARDS; i++) {
        if (!owns(&cards[i], handle)) {
            continue;
        }
        load();
        for (int at = 0; at < MAX_INSTANCES; at++) {
            struct instance *each = &cards[i].instances[at];
            if ((const char *)handle >= (const char *)each && (const char *)handle < (const char *)(each + 1)) {
                *card = i;
                *instance = each;
                return each->exists;
            }
        }
    }
    return false;
}

#define INSTANCE(handle)                                                                                               \
    int card;                                                                                                          \
    struct instance *own;                                                                                              \
    if (!find(handle, &card, &own)) {                                                                                  \
        return NVML_ERROR_INVALID_ARGUMENT;                                                                            \
    }

#define COMPUTE(handle)                                                                                                \
    INSTANCE(handle);                                                                                                  \
    struct compute *part = (struct compute *)(handle);                                                                 \
    if (!part->exists) {                                                                                               \
        return NVML_ERROR_INVALID_ARGUMENT;                                                                            \
    }

const char *fake_mig_uuid(nvmlDevice_t device) {
    int card;
    struct instance *own;
    return find(device, &card, &own) ? ((struct compute *)device)->uuid : NULL;
}

bool fake_mig_in_use(const char *uuid) {
    const char *used = getenv("FAKE_MIG_IN_USE");
    return used != NULL && strstr(used, uuid) != NULL;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    FAKE_ENTER("nvmlDeviceGetMigMode");
    STATE();
    *current = state->enabled;
    *pending = getenv("FAKE_MIG_PENDING") != NULL ? strcmp(getenv("FAKE_MIG_PENDING"), "on") == 0 : state->enabled;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *status) {
    FAKE_ENTER("nvmlDeviceSetMigMode");
    STATE();
    *status = NVML_SUCCESS;
    for (int i = 0; i < MAX_INSTANCES; i++) {
        if (state->instances[i].exists) {
            *status = FAKE_NVML_ERROR_IN_USE;
            return FAKE_NVML_ERROR_IN_USE;
        }
    }
    if (getenv("FAKE_MIG_NEEDS_RESET") != NULL) {
        setenv("FAKE_MIG_PENDING", mode != 0 ? "on" : "off", 1);
        *status = mode != (unsigned int)state->enabled ? FAKE_NVML_ERROR_RESET_REQUIRED : NVML_SUCCESS;
        return NVML_SUCCESS;
    }
    state->enabled = mode != 0;
    save();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    STATE();
    *count = MAX_INSTANCES;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig) {
    STATE();
    unsigned int at = 0;
    for (int i = 0; i < MAX_INSTANCES; i++) {
        for (int k = 0; k < MAX_INSTANCES && state->instances[i].exists; k++) {
            if (state->instances[i].compute[k].exists && at++ == index) {
                *mig = (nvmlDevice_t)&state->instances[i].compute[k];
                return NVML_SUCCESS;
            }
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
    COMPUTE(device);
    *id = own->id;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) {
    COMPUTE(device);
    *id = part->id;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    COMPUTE(device);
    const struct profile *profile = profile_by_id(own->profile_id);
    *attributes = (nvmlDeviceAttributes_t){.gpuInstanceSliceCount = profile->slices,
                                           .computeInstanceSliceCount = compute_slices[part->profile_id],
                                           .memorySizeMB = profile->memory_mib};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info) {
    STATE();
    if (info->version != (sizeof *info | (2u << 24))) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    for (size_t i = 0; i < sizeof profiles / sizeof *profiles; i++) {
        const struct profile *each = &profiles[i];
        if (each->number == profile) {
            info->id = each->id;
            info->sliceCount = each->slices;
            info->instanceCount = each->places;
            info->multiprocessorCount = 14 * each->slices;
            info->memorySizeMB = each->memory_mib;
            snprintf(info->name, sizeof info->name, "MIG %ug", each->slices);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int profile_id,
                                                           nvmlPlacement_t *placements, unsigned int *count) {
    STATE();
    const struct profile *profile = profile_by_id(profile_id);
    if (profile == NULL) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    for (unsigned int i = 0; placements != NULL && i < profile->places; i++) {
        placements[i] = (nvmlPlacement_t){profile->starts[i], profile->size};
    }
    *count = profile->places;
    return NVML_SUCCESS;
}

static bool is_place(const struct profile *profile, const nvmlPlacement_t *placement) {
    for (unsigned int i = 0; i < profile->places; i++) {
        if (profile->starts[i] == placement->start && profile->size == placement->size) {
            return true;
        }
    }
    return false;
}

static bool is_free(const struct card_state *state, const nvmlPlacement_t *placement) {
    for (int i = 0; i < MAX_INSTANCES; i++) {
        const struct instance *each = &state->instances[i];
        bool overlaps = each->start < placement->start + placement->size && placement->start < each->start + each->size;
        if (each->exists && overlaps) {
            return false;
        }
    }
    return true;
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profile_id,
                                                      const nvmlPlacement_t *placement, nvmlGpuInstance_t *instance) {
    FAKE_ENTER("nvmlDeviceCreateGpuInstanceWithPlacement");
    STATE();
    const struct profile *profile = profile_by_id(profile_id);
    if (!state->enabled || profile == NULL) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (!is_place(profile, placement)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!is_free(state, placement)) {
        return FAKE_NVML_ERROR_INSUFFICIENT_RESOURCES;
    }
    for (int i = 0; i < MAX_INSTANCES; i++) {
        struct instance *each = &state->instances[i];
        if (!each->exists) {
            unsigned int first = placement->size == 8 ? 0 : placement->size == 4 ? 1 : placement->size == 2 ? 3 : 7;
            *each = (struct instance){.exists = true,
                                      .id = first + placement->start / placement->size,
                                      .profile_id = profile_id,
                                      .start = placement->start,
                                      .size = placement->size};
            *instance = (nvmlGpuInstance_t)each;
            save();
            return NVML_SUCCESS;
        }
    }
    return FAKE_NVML_ERROR_INSUFFICIENT_RESOURCES;
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profile_id, nvmlGpuInstance_t *instances,
                                       unsigned int *count) {
    FAKE_ENTER("nvmlDeviceGetGpuInstances");
    STATE();
    *count = 0;
    for (int i = 0; i < MAX_INSTANCES; i++) {
        if (state->instances[i].exists && state->instances[i].profile_id == profile_id) {
            instances[(*count)++] = (nvmlGpuInstance_t)&state->instances[i];
        }
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance) {
    STATE();
    for (int i = 0; i < MAX_INSTANCES; i++) {
        if (state->instances[i].exists && state->instances[i].id == id) {
            *instance = (nvmlGpuInstance_t)&state->instances[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info) {
    INSTANCE(instance);
    *info = (nvmlGpuInstanceInfo_t){(nvmlDevice_t)&fake_config()->cards[card], own->id, own->profile_id,
                                    (nvmlPlacement_t){own->start, own->size}};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance) {
    FAKE_ENTER("nvmlGpuInstanceDestroy");
    INSTANCE(instance);
    for (int k = 0; k < MAX_INSTANCES; k++) {
        if (own->compute[k].exists) {
            return FAKE_NVML_ERROR_IN_USE;
        }
    }
    memset(own, 0, sizeof *own);
    save();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int profile,
                                                           unsigned int engines,
                                                           nvmlComputeInstanceProfileInfo_v2_t *info) {
    INSTANCE(instance);
    if (info->version != (sizeof *info | (2u << 24))) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    const struct profile *whole = profile_by_id(own->profile_id);
    if (engines != 0 || profile >= COMPUTE_PROFILES || compute_slices[profile] > whole->slices) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    info->id = profile;
    info->sliceCount = compute_slices[profile];
    info->instanceCount = whole->slices / compute_slices[profile];
    return NVML_SUCCESS;
}

static unsigned int slices_taken(const struct instance *own) {
    unsigned int taken = 0;
    for (int k = 0; k < MAX_INSTANCES; k++) {
        taken += own->compute[k].exists ? compute_slices[own->compute[k].profile_id] : 0;
    }
    return taken;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned int profile_id,
                                                  nvmlComputeInstance_t *compute) {
    FAKE_ENTER("nvmlGpuInstanceCreateComputeInstance");
    INSTANCE(instance);
    if (profile_id >= COMPUTE_PROFILES) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (slices_taken(own) + compute_slices[profile_id] > profile_by_id(own->profile_id)->slices) {
        return FAKE_NVML_ERROR_INSUFFICIENT_RESOURCES;
    }
    for (unsigned int k = 0; k < MAX_INSTANCES; k++) {
        struct compute *each = &own->compute[k];
        if (!each->exists) {
            *each = (struct compute){.exists = true, .id = k, .profile_id = profile_id};
            const char *parent = fake_config()->cards[card].uuid;
            snprintf(each->uuid, sizeof each->uuid, "MIG-%s-%u-%u", parent, own->id, k);
            *compute = (nvmlComputeInstance_t)each;
            save();
            return NVML_SUCCESS;
        }
    }
    return FAKE_NVML_ERROR_INSUFFICIENT_RESOURCES;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int profile_id,
                                                nvmlComputeInstance_t *found, unsigned int *count) {
    INSTANCE(instance);
    *count = 0;
    for (int k = 0; k < MAX_INSTANCES; k++) {
        if (own->compute[k].exists && own->compute[k].profile_id == profile_id) {
            found[(*count)++] = (nvmlComputeInstance_t)&own->compute[k];
        }
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info) {
    COMPUTE(compute);
    *info = (nvmlComputeInstanceInfo_t){(nvmlDevice_t)&fake_config()->cards[card], (nvmlGpuInstance_t)own, part->id,
                                        part->profile_id, (nvmlPlacement_t){0, compute_slices[part->profile_id]}};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute) {
    FAKE_ENTER("nvmlComputeInstanceDestroy");
    COMPUTE(compute);
    if (fake_mig_in_use(part->uuid)) {
        return FAKE_NVML_ERROR_IN_USE;
    }
    memset(part, 0, sizeof *part);
    save();
    return NVML_SUCCESS;
}
