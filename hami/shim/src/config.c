#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "log.h"
#include "parse.h"

#define LIMIT_NAME  "CUDA_DEVICE_MEMORY_LIMIT"
#define CORE_NAME   "CUDA_DEVICE_SM_LIMIT"
#define REGION_NAME "CUDA_DEVICE_MEMORY_SHARED_CACHE"

static void refuse(vgpu_config_t *config, const char *name, const char *value, const char *why) {
    if (!config->refused) {
        snprintf(config->reason, sizeof config->reason, "%.80s=\"%.60s\": %.90s", name, value, why);
    }
    config->refused = true;
}

enum { NO_SUFFIX = -1, NO_PLACE = -2, NO_INDEX = -3 };

/* Index behind the prefix ("_3" -> 3). NO_PLACE: a number above all cards that we count; those are refused anyway. */
static int suffix_index(const char *suffix) {
    if (*suffix == '\0') {
        return NO_SUFFIX;
    }
    size_t digits = *suffix == '_' ? strspn(suffix + 1, "0123456789") : 0;
    if (digits == 0 || suffix[1 + digits] != '\0') {
        return NO_INDEX;
    }
    int index = vgpu_parse_int(suffix + 1, VGPU_MAX_DEVICES);
    return index < VGPU_MAX_DEVICES ? index : NO_PLACE;
}

static bool set_uuid_limit(vgpu_limits_t *limits, const char *uuid, vgpu_limit_t limit) {
    if (strncmp(uuid, "GPU-", 4) != 0 || strlen(uuid) >= VGPU_UUID_LEN ||
        limits->by_uuid_count == VGPU_MAX_UUID_LIMITS) {
        return false;
    }
    vgpu_uuid_limit_t *entry = &limits->by_uuid[limits->by_uuid_count++];
    snprintf(entry->uuid, sizeof entry->uuid, "%.95s", uuid);
    entry->limit = limit;
    return true;
}

static void set_memory_limit(vgpu_config_t *config, const char *name, const char *value, bool environment) {
    bool user = environment && config->from_file;
    vgpu_limits_t *limits = user ? &config->user : &config->owner;
    vgpu_limit_t limit = {.set = true};
    const char *why = vgpu_parse_size(value, &limit.bytes);
    if (why != NULL) {
        if (!user) {
            refuse(config, name, value, why);
        }
        return;
    }
    const char *suffix = name + strlen(LIMIT_NAME);
    int index = suffix_index(suffix);
    if (index == NO_SUFFIX) {
        limits->general = limit;
    } else if (index >= 0) {
        limits->by_index[index] = limit;
    } else if (index == NO_INDEX && !(*suffix == '_' && set_uuid_limit(limits, suffix + 1, limit)) && !user) {
        refuse(config, name, value, "no card is meant; end the name in _<index> or _<UUID>");
    }
}

/* 0 and 100 both mean that nothing is limited. */
static bool lowers(uint32_t percent, uint32_t than) {
    return percent != 0 && (than == 0 || percent < than);
}

static void set_core_limit(vgpu_config_t *config, const char *name, const char *value, bool environment) {
    uint32_t percent;
    const char *why = vgpu_parse_percent(value, &percent);
    if (why != NULL) {
        if (!environment || !config->from_file) {
            refuse(config, name, value, why);
        }
        return;
    }
    int index = suffix_index(name + strlen(CORE_NAME));
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
        bool may = !environment || !config->from_file || lowers(percent, config->core_limit[i]);
        if (may && (index == NO_SUFFIX || index == i)) {
            config->core_limit[i] = percent;
        }
    }
}

/* Where each process starts must not decide which account it shares, nor may a part of the path. */
static void set_region_path(vgpu_config_t *config, const char *name, const char *value) {
    if (*value != '/') {
        refuse(config, name, value, "give a path from the root, for all processes must find the same file");
    } else if (strlen(value) >= sizeof config->region_path) {
        refuse(config, name, value, "too long");
    }
    snprintf(config->region_path, sizeof config->region_path, "%.*s", (int)sizeof config->region_path - 1, value);
    config->active = true;
}

/* Names that only the mounted file may set once it exists: they decide where and for which cards we count. */
static bool guarded_name(vgpu_config_t *config, const char *name, const char *value) {
    if (strcmp(name, REGION_NAME) == 0) {
        if (*value != '\0') {
            set_region_path(config, name, value);
        }
    } else if (strcmp(name, "NVIDIA_VISIBLE_DEVICES") == 0) {
        snprintf(config->visible, sizeof config->visible, "%s", value);
    } else if (strcmp(name, "VGPU_CONTEXT_SIZE") == 0) {
        const char *why = vgpu_parse_size(value, &config->context_bytes);
        config->context_set = why == NULL;
        if (why != NULL) {
            refuse(config, name, value, why);
        }
    } else if (strcmp(name, "CUDA_OVERSUBSCRIBE") == 0) {
        config->oversubscribe = vgpu_parse_true(value);
    } else {
        return false;
    }
    return true;
}

static void set_plain(vgpu_config_t *config, const char *name, const char *value, bool environment) {
    if (strcmp(name, "CUDA_TASK_PRIORITY") == 0) {
        config->priority = vgpu_parse_int(value, 1);
    } else if (strcmp(name, "CUDA_VISIBLE_DEVICES") == 0) {
        snprintf(config->cuda_visible, sizeof config->cuda_visible, "%s", value);
    } else if (strcmp(name, "LIBCUDA_LOG_LEVEL") == 0) {
        int level = vgpu_parse_int(value, LOG_ERROR);
        /* Upstream's default 2 prints warnings; ours stays silent below the levels people ask for by hand. */
        vgpu_log_level = level < LOG_ERROR ? LOG_ERROR : level > LOG_DEBUG ? LOG_DEBUG : level;
    } else if (!environment && strcmp(name, "VGPU_FAILURE_POLICY") == 0) {
        config->fail_open = strcmp(value, "open") == 0;
    }
}

static void set_name(vgpu_config_t *config, const char *name, const char *value, bool environment) {
    if (strncmp(name, LIMIT_NAME, strlen(LIMIT_NAME)) == 0) {
        set_memory_limit(config, name, value, environment);
    } else if (strncmp(name, CORE_NAME, strlen(CORE_NAME)) == 0) {
        set_core_limit(config, name, value, environment);
    } else if ((environment && config->from_file) || !guarded_name(config, name, value)) {
        set_plain(config, name, value, environment);
    }
}

/* What is too long to be read may not pass for "no limit". */
static void refuse_long(vgpu_config_t *config, const char *entry, size_t name_length, bool environment) {
    static const char *const names[] = {LIMIT_NAME, CORE_NAME, REGION_NAME, "VGPU_CONTEXT_SIZE"};
    char name[81];
    snprintf(name, sizeof name, "%.*s", (int)(name_length < 80 ? name_length : 80), entry);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strncmp(name, names[i], strlen(names[i])) == 0 && !(environment && config->from_file)) {
            refuse(config, name, "...", "too long");
        }
    }
}

static void split_and_set(vgpu_config_t *config, const char *entry, size_t length, bool environment) {
    char line[4200];
    const char *equals = memchr(entry, '=', length);
    if (equals == NULL) {
        return;
    }
    if (length >= sizeof line) {
        refuse_long(config, entry, (size_t)(equals - entry), environment);
        return;
    }
    memcpy(line, entry, length);
    line[length] = '\0';
    char *value = line + (equals - entry);
    *value++ = '\0';
    set_name(config, line, value, environment);
}

static bool interesting(const char *entry) {
    return strncmp(entry, "CUDA_", 5) == 0 || strncmp(entry, "VGPU_", 5) == 0 || strncmp(entry, "NVIDIA_V", 8) == 0 ||
           strncmp(entry, "LIBCUDA_", 8) == 0;
}

static void read_file_text(vgpu_config_t *config, const char *text) {
    while (*text != '\0') {
        size_t length = strcspn(text, "\n");
        size_t used = length > 0 && text[length - 1] == '\r' ? length - 1 : length;
        size_t blank = strspn(text, " \t");
        if (blank < used && text[blank] != '#') {
            split_and_set(config, text + blank, used - blank, false);
        }
        text += length + (text[length] == '\n' ? 1 : 0);
    }
}

static bool any_limit(const vgpu_limits_t *limits) {
    bool found = limits->general.bytes != 0;
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
        found = found || limits->by_index[i].bytes != 0;
    }
    for (int i = 0; i < limits->by_uuid_count; i++) {
        found = found || limits->by_uuid[i].limit.bytes != 0;
    }
    return found;
}

void vgpu_config_build(vgpu_config_t *config, char *const *environment, const char *file_text) {
    memset(config, 0, sizeof *config);
    config->priority = 1;
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
        config->core_limit[i] = 100;
    }
    snprintf(config->region_path, sizeof config->region_path, "%s", VGPU_DEFAULT_REGION);
    if (file_text != NULL) {
        read_file_text(config, file_text);
        config->from_file = true;
    }
    for (; environment != NULL && *environment != NULL; environment++) {
        if (interesting(*environment)) {
            split_and_set(config, *environment, strlen(*environment), true);
        }
    }
    config->active = config->active || config->refused || any_limit(&config->owner) || any_limit(&config->user);
}

static bool read_whole(const char *path, char *buffer, size_t size, bool *exists) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    *exists = fd >= 0 || errno != ENOENT;
    if (fd < 0) {
        return false;
    }
    size_t used = 0;
    ssize_t got = 1;
    while (got > 0 && used < size - 1) {
        got = read(fd, buffer + used, size - 1 - used);
        used += got > 0 ? (size_t)got : 0;
    }
    close(fd);
    buffer[used] = '\0';
    return got == 0;
}

/* What holds when there is no memory to read the configuration into. */
static vgpu_config_t no_config = {
    .active = true, .refused = true, .reason = "no memory to read it", .region_path = VGPU_DEFAULT_REGION};
static _Atomic(vgpu_config_t *) the_config;

static void read_into(vgpu_config_t *config, char *text, size_t size) {
    extern char **environ;
    bool exists;
    bool read_ok = read_whole(VGPU_CONFIG_PATH, text, size, &exists);
    const char *path = VGPU_CONFIG_PATH;
    if (!exists) {
        /* Another place is accepted only where the operator mounted nothing, so it cannot lift a mounted limit. */
        path = getenv("VGPU_CONFIG_FILE");
        read_ok = path != NULL && read_whole(path, text, size, &exists);
    }
    vgpu_config_build(config, environ, read_ok ? text : NULL);
    if (exists && !read_ok) {
        refuse(config, "configuration file", path, "cannot be read");
        config->active = true;
    }
}

static vgpu_config_t *load(void) {
    enum { LARGEST_FILE = 65536 };
    vgpu_config_t *config = malloc(sizeof *config);
    char *text = malloc(LARGEST_FILE);
    if (config != NULL && text != NULL) {
        read_into(config, text, LARGEST_FILE);
    } else {
        free(config);
        config = &no_config;
    }
    free(text);
    return config;
}

/* No lock: a fork in the middle would leave it locked in the child. Threads that start together each read, one wins. */
const vgpu_config_t *vgpu_config(void) {
    vgpu_config_t *config = atomic_load_explicit(&the_config, memory_order_acquire);
    if (config != NULL) {
        return config;
    }
    int saved = errno;
    vgpu_config_t *mine = load();
    if (!atomic_compare_exchange_strong(&the_config, &config, mine)) {
        if (mine != &no_config) {
            free(mine);
        }
        mine = config;
    } else if (mine->refused) {
        vgpu_log(LOG_ERROR, "configuration refused, no GPU memory will be granted: %s", mine->reason);
    }
    errno = saved;
    return mine;
}

int vgpu_config_card(const vgpu_config_t *config, const char *uuid) {
    const char *item = config->visible;
    for (int index = 0; *item != '\0'; index++) {
        size_t length = strcspn(item, ",");
        if (length > 4 && strncmp(item, "GPU-", 4) == 0 && strncasecmp(item, uuid, length) == 0) {
            return index;
        }
        item += length + (item[length] == ',' ? 1 : 0);
    }
    return -1;
}

static uint64_t limit_from(const vgpu_limits_t *limits, const char *uuid, int card, int ordinal) {
    for (int i = 0; i < limits->by_uuid_count; i++) {
        if (strcasecmp(limits->by_uuid[i].uuid, uuid) == 0) {
            return limits->by_uuid[i].limit.bytes;
        }
    }
    if (card >= 0 && card < VGPU_MAX_DEVICES && limits->by_index[card].set) {
        return limits->by_index[card].bytes;
    }
    if (limits->general.set) {
        return limits->general.bytes;
    }
    /* Numbered by what the process sees: a user without a plugin who set CUDA_VISIBLE_DEVICES and LIMIT_0. */
    if (ordinal >= 0 && ordinal < VGPU_MAX_DEVICES && limits->by_index[ordinal].set) {
        return limits->by_index[ordinal].bytes;
    }
    return 0;
}

uint64_t vgpu_config_limit(const vgpu_config_t *config, const char *uuid, int card, int ordinal) {
    uint64_t owner = limit_from(&config->owner, uuid, card, ordinal);
    uint64_t user = limit_from(&config->user, uuid, card, ordinal);
    return owner == 0 || (user != 0 && user < owner) ? user : owner;
}
