/* vgpu-info: limits, use and processes of this container, as the shim sees them. Takes no slot and loads no driver. */
#include <stdio.h>
#include <string.h>

#include "config.h"
#include "region_file.h"
#include "view.h"

static void print_bytes(const char *what, uint64_t bytes) {
    printf("  %-13s %llu (%llu MiB)\n", what, (unsigned long long)bytes, (unsigned long long)(bytes >> 20));
}

static void print_card(const vgpu_region_t *region, int card) {
    char uuid[VGPU_UUID_LEN];
    snprintf(uuid, sizeof uuid, "%.95s", region->uuid[card]);
    vgpu_view_t view = vgpu_view(uuid, card);
    vgpu_process_t processes[VGPU_MAX_SLOTS];
    unsigned int count = vgpu_view_processes(&view, processes, VGPU_MAX_SLOTS);
    uint64_t used = vgpu_view_used(&view);
    printf("card %d  %s\n", card, uuid);
    print_bytes("memory limit", view.limit);
    print_bytes("memory used", used);
    printf("  %-13s %llu %%\n", "core limit", (unsigned long long)region->core_limit[card]);
    for (unsigned int i = 0; i < count && i < VGPU_MAX_SLOTS; i++) {
        char name[32];
        snprintf(name, sizeof name, "process %d", processes[i].pid);
        print_bytes(name, processes[i].bytes);
    }
}

/* Before the first process uses a card there is no region: what the settings say of the cards they list. */
static void print_configured(const vgpu_config_t *config) {
    const char *at = config->visible;
    for (int card = 0; *at != '\0'; card++) {
        char uuid[VGPU_UUID_LEN];
        size_t length = strcspn(at, ",");
        snprintf(uuid, sizeof uuid, "%.*s", (int)length, at);
        printf("card %d  %s\n", card, uuid);
        print_bytes("memory limit", vgpu_config_limit(config, uuid, card, -1));
        at += length + (at[length] == ',' ? 1 : 0);
    }
}

int main(void) {
    const vgpu_config_t *config = vgpu_config();
    printf("configuration  %s\n", config->refused     ? config->reason
                                  : config->from_file ? "mounted file"
                                                      : "environment");
    printf("limiting       %s\n", config->refused ? "refused" : config->active ? "yes" : "no");
    printf("region         %s\n", config->region_path);
    const vgpu_region_t *region = vgpu_region_view(config->region_path);
    if (region == NULL) {
        print_configured(config);
        printf("no process has used a card yet\n");
        return config->refused ? 1 : 0;
    }
    for (int card = 0; card < VGPU_MAX_DEVICES; card++) {
        if (region->uuid[card][0] != '\0') {
            print_card(region, card);
        }
    }
    return config->refused ? 1 : 0;
}
