#include "view.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "member.h"
#include "region_file.h"

static const vgpu_region_t *_Atomic attached;

/* Members look through their own mapping; it is not inherited by fork children, so the other one is not either. */
static const vgpu_region_t *region_to_see(const vgpu_config_t *config) {
    if (vgpu_joined()) {
        return vgpu_member.region;
    }
    const vgpu_region_t *region = atomic_load(&attached);
    if (region == NULL) {
        region = vgpu_region_view(config->region_path);
        atomic_store(&attached, region);
    }
    return region;
}

vgpu_view_t vgpu_view(const char *uuid, int nvml_index) {
    const vgpu_config_t *config = vgpu_config();
    vgpu_view_t view = {.region = region_to_see(config), .card = -1};
    for (int i = 0; view.region != NULL && i < VGPU_MAX_DEVICES; i++) {
        if (uuid[0] != '\0' && strncmp(view.region->uuid[i], uuid, VGPU_UUID_LEN) == 0) {
            view.card = i;
            view.limit = __atomic_load_n(&view.region->memory_limit[i], __ATOMIC_RELAXED);
        }
    }
    if (view.card < 0 || view.limit == 0 || config->from_file) {
        int listed = vgpu_config_card(config, uuid);
        uint64_t own = vgpu_config_limit(config, uuid, listed >= 0 ? listed : nvml_index, -1);
        view.limit = view.limit == 0 || (own != 0 && own < view.limit) ? own : view.limit;
    }
    return view;
}

/* Call "each" for living slots that hold bytes of the card. */
unsigned int vgpu_view_processes(const vgpu_view_t *view, vgpu_process_t *out, unsigned int room) {
    if (view->region == NULL || view->card < 0) {
        return 0;
    }
    int saved = errno;
    int fd = open(vgpu_config()->region_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    unsigned int count = 0;
    uint32_t high = __atomic_load_n(&view->region->tail.slot_high, __ATOMIC_ACQUIRE);
    for (uint32_t slot = 0; slot < high && slot < VGPU_MAX_SLOTS; slot++) {
        const vgpu_slot_t *record = &view->region->procs[slot];
        uint64_t bytes = __atomic_load_n(&record->used[view->card].total, __ATOMIC_RELAXED);
        if (bytes == 0 || (fd >= 0 && !vgpu_slot_locked(fd, (int)slot))) {
            continue;
        }
        if (count < room) {
            out[count] = (vgpu_process_t){.pid = record->pid, .bytes = bytes};
        }
        count++;
    }
    if (fd >= 0) {
        close(fd);
    }
    errno = saved;
    return count;
}

uint64_t vgpu_view_used(const vgpu_view_t *view) {
    vgpu_process_t processes[VGPU_MAX_SLOTS];
    unsigned int count = vgpu_view_processes(view, processes, VGPU_MAX_SLOTS);
    uint64_t used = 0;
    for (unsigned int i = 0; i < count && i < VGPU_MAX_SLOTS; i++) {
        used += processes[i].bytes;
    }
    return used;
}
