/*
 * What this process may use: upstream's environment variables (contract 3.8) and a mounted file with the same names.
 *
 * The file wins over the environment, because a program can clear or change its environment; a smaller limit in the
 * environment still lowers it. A value that cannot be read never means "no limit": it makes the whole configuration
 * refused, and every allocation with it.
 */
#ifndef HAMI_SHIM_CONFIG_H
#define HAMI_SHIM_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "region.h"

#define VGPU_CONFIG_PATH     "/usr/local/vgpu/vgpu.conf"
#define VGPU_DEFAULT_REGION  "/tmp/cudevshr.cache"
#define VGPU_MAX_UUID_LIMITS 64 /* more than cards that we count: a list may name others too */

typedef struct {
    uint64_t bytes;
    bool set;
} vgpu_limit_t;

typedef struct {
    char uuid[VGPU_UUID_LEN];
    vgpu_limit_t limit;
} vgpu_uuid_limit_t;

/* One source of memory limits: the most exact statement about a card holds. */
typedef struct {
    vgpu_limit_t general;
    vgpu_limit_t by_index[VGPU_MAX_DEVICES];
    vgpu_uuid_limit_t by_uuid[VGPU_MAX_UUID_LIMITS];
    int by_uuid_count;
} vgpu_limits_t;

typedef struct {
    bool active;    /* there is something to count or to limit */
    bool refused;   /* a value could not be read; reason says which */
    bool fail_open; /* policy when the region cannot be used; only the mounted file may say open */
    bool from_file; /* the mounted file was read */
    bool oversubscribe;
    bool context_set; /* VGPU_CONTEXT_SIZE given: do not measure */
    uint64_t context_bytes;
    vgpu_limits_t owner; /* the mounted file, or the environment where no file is mounted */
    vgpu_limits_t user;  /* the environment beside a mounted file: may lower, never lift */
    uint32_t core_limit[VGPU_MAX_DEVICES];
    int32_t priority;
    char region_path[4096];
    char visible[4096];      /* NVIDIA_VISIBLE_DEVICES: the container's cards in order */
    char cuda_visible[1024]; /* CUDA_VISIBLE_DEVICES of this process */
    char reason[256];
} vgpu_config_t;

/*
 * Read a size: digits, optional decimal part, optional unit k/m/g/t with optional "i" and "b", any case, blanks around.
 * Units are binary. Returns NULL, or why the text was refused.
 */
const char *vgpu_parse_size(const char *text, uint64_t *bytes);

/* Read a percentage 0..100 (0 and 100 mean no limit). Returns NULL, or why the text was refused. */
const char *vgpu_parse_percent(const char *text, uint32_t *percent);

/* Build the configuration from a list of NAME=VALUE strings and the text of the mounted file (NULL: none). */
void vgpu_config_build(vgpu_config_t *config, char *const *environment, const char *file_text);

/* The configuration of this process, read at the first call. */
const vgpu_config_t *vgpu_config(void);

/* The limit of a card by its UUID ("GPU-..."), its index in the container (-1 unknown) and its CUDA ordinal. */
uint64_t vgpu_config_limit(const vgpu_config_t *config, const char *uuid, int card, int ordinal);

/* Position of the card in NVIDIA_VISIBLE_DEVICES, or -1. */
int vgpu_config_card(const vgpu_config_t *config, const char *uuid);

#endif
