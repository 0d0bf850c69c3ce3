#include "lookup.h"

#include <stdbool.h>
#include <stddef.h>

#include "config.h"
#include "driver.h"
#include "log.h"
#include "text.h"

#define RTLD_NEXT_HANDLE    ((void *)-1L)
#define RTLD_DEFAULT_HANDLE NULL

__attribute__((visibility("default"))) void *dlsym(void *handle, const char *name);
__attribute__((visibility("default"))) void *dlvsym(void *handle, const char *name, const char *version);

typedef struct {
    const char *symbol;
    const char *base; /* as cuGetProcAddress is asked */
    int version;
    int ptsz;
    void *function;
} hook_entry_t;

#define HOOK(library, symbol, base, version, ptsz) {#symbol, base, version, ptsz, (void *)&symbol},
static const hook_entry_t table[HOOK_COUNT] = {
#include "hooks.def"
};
#undef HOOK

/* "cuXxx" and "nvmlXxx" only: cublas, cudnn, curl and custom names leave here after three comparisons. */
static bool driver_name(const char *name) {
    if (name[0] == 'c') {
        return name[1] == 'u' && text_upper(name[2]);
    }
    return text_starts(name, "nvml") && text_upper(name[4]);
}

static int find(const char *name) {
    int low = 0;
    int high = HOOK_COUNT - 1;
    while (low <= high) {
        int middle = (low + high) / 2;
        int order = text_compare(name, table[middle].symbol);
        if (order == 0) {
            return middle;
        }
        if (order < 0) {
            high = middle - 1;
        } else {
            low = middle + 1;
        }
    }
    return -1;
}

/* Set the error text that dlerror() will give, and say that there is nothing. */
static void *not_there(void *handle) {
    (void)vgpu_real_dlsym(handle, "function of a CUDA driver that is not loaded");
    return VGPU_NOT_THERE;
}

/*
 * What a program gets that asked for one of our names and would have been given "asked". With nothing to limit, the
 * driver's own function: it then pays nothing. Another library's function of that name is not ours to replace. Where
 * the loader found only our own export, no driver is loaded or it lacks the function, and the program must not take the
 * export for a driver.
 */
static void *decide(int index, void *handle, void *asked) {
    void *real = vgpu_real_if_loaded((vgpu_hook_t)index);
    bool active = vgpu_config()->active;
    if (asked == table[index].function) {
        return real == NULL ? not_there(handle) : active ? asked : real;
    }
    return asked != NULL && asked == real && active ? table[index].function : NULL;
}

/* Only the real dlsym can tell who asks; what it would find behind the caller is the driver. */
static void *next_function(int index) {
    bool ours = vgpu_config()->active && vgpu_real_if_loaded((vgpu_hook_t)index) != NULL;
    return ours ? table[index].function : NULL;
}

static void *driver_function(void *handle, const char *name) {
    int index = find(name);
    if (index < 0 || handle == RTLD_NEXT_HANDLE) {
        return index < 0 ? NULL : next_function(index);
    }
    return decide(index, handle, vgpu_real_dlsym(handle, name));
}

void *vgpu_lookup_dlsym(void *handle, const char *name) {
    vgpu_driver_find_dl();
    if (name == NULL || vgpu_real_dlsym == NULL) {
        return NULL;
    }
    if (driver_name(name)) {
        return driver_function(handle, name);
    }
    /* A wrapper that fetches the next dlsym in line must get the next one, or two wrappers would call each other. */
    if (handle != RTLD_NEXT_HANDLE && text_equal(name, "dlsym") && vgpu_real_dlsym(handle, name) != NULL) {
        return (void *)&dlsym;
    }
    if (handle != RTLD_NEXT_HANDLE && text_equal(name, "dlvsym") && vgpu_real_dlsym(handle, name) != NULL) {
        return (void *)&dlvsym;
    }
    return NULL;
}

/*
 * A wrapper of dlsym asks for the next one by the C library's version of it, which our export has not: it would be
 * given the C library's own, and if LD_PRELOAD names it before us, all that it looks up would pass us by. Ours calls
 * nobody's wrapper, so two of them cannot call each other.
 */
static void *look_up_itself(void *handle, const char *name, const char *version) {
    bool itself = text_equal(name, "dlsym");
    if (!itself && !text_equal(name, "dlvsym")) {
        return NULL;
    }
    void *where = handle == RTLD_NEXT_HANDLE ? RTLD_DEFAULT_HANDLE : handle;
    if (vgpu_real_dlvsym(where, name, version) == NULL) {
        return NULL;
    }
    return itself ? (void *)&dlsym : (void *)&dlvsym;
}

void *vgpu_lookup_dlvsym(void *handle, const char *name, const char *version) {
    vgpu_driver_find_dl();
    if (name == NULL || version == NULL || vgpu_real_dlvsym == NULL) {
        return NULL;
    }
    if (!driver_name(name)) {
        return look_up_itself(handle, name, version);
    }
    int index = find(name);
    if (index < 0 || handle == RTLD_NEXT_HANDLE) {
        return index < 0 ? NULL : next_function(index);
    }
    return decide(index, handle, vgpu_real_dlvsym(handle, name, version));
}

/* First entry whose symbol begins with the prefix, by halves. */
static int first_with_prefix(const char *prefix, size_t length) {
    int low = 0;
    int high = HOOK_COUNT;
    while (low < high) {
        int middle = (low + high) / 2;
        if (text_compare_prefix(table[middle].symbol, prefix, length) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

void *vgpu_lookup_answer(const char *base, void *answer, int version, uint64_t flags) {
    size_t length = text_length(base);
    if (answer == NULL || length == 0 || !driver_name(base) || !vgpu_config()->active) {
        return answer;
    }
    int wanted_ptsz = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    const hook_entry_t *by_version = NULL;
    for (int i = first_with_prefix(base, length); i < HOOK_COUNT; i++) {
        const hook_entry_t *entry = &table[i];
        if (text_compare_prefix(entry->symbol, base, length) != 0) {
            break;
        }
        if (vgpu_real_if_loaded((vgpu_hook_t)i) == answer || entry->function == answer) {
            return entry->function;
        }
        bool usable = text_equal(entry->base, base) && entry->version <= version && entry->ptsz <= wanted_ptsz;
        if (usable && (by_version == NULL || entry->ptsz > by_version->ptsz ||
                       (entry->ptsz == by_version->ptsz && entry->version > by_version->version))) {
            by_version = entry;
        }
    }
    if (by_version == NULL) {
        return answer;
    }
    vgpu_log(LOG_INFO, "%s version %d is at no exported address; hooked as %s", base, version, by_version->symbol);
    return by_version->function;
}
