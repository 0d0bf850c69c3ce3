#include "driver.h"

#include <stdatomic.h>
#include <stddef.h>

#include "elfwalk.h"
#include "log.h"

#define RTLD_LAZY_FLAG   0x1
#define RTLD_NOLOAD_FLAG 0x4

typedef void *(*dlopen_t)(const char *, int);
typedef enum { LIBRARY_CUDA, LIBRARY_NVML, LIBRARY_COUNT } library_t;

#define HOOK(library, symbol, base, version, ptsz) {#symbol, LIBRARY_##library},
static const struct {
    const char *name;
    library_t library;
} hook_symbols[HOOK_COUNT] = {
#include "hooks.def"
};
#undef HOOK

#define HELPER_NAME(name) #name,
static const char *const helper_names[VGPU_HELPER_COUNT] = {VGPU_HELPERS(HELPER_NAME)};
#undef HELPER_NAME

static const char *const library_files[LIBRARY_COUNT] = {"libcuda.so.1", "libnvidia-ml.so.1"};

void *(*vgpu_real_dlsym)(void *, const char *);
void *(*vgpu_real_dlvsym)(void *, const char *, const char *);
static _Atomic(dlopen_t) real_dlopen;
static _Atomic(void *) libraries[LIBRARY_COUNT];
static _Atomic(void *) hooks[HOOK_COUNT];
static _Atomic(void *) helpers[VGPU_HELPER_COUNT];

void vgpu_driver_find_dl(void) {
    /* Several threads may find the same addresses at once; dlopen is written last and says that all are there. */
    if (atomic_load_explicit(&real_dlopen, memory_order_acquire) != NULL) {
        return;
    }
    __atomic_store_n((void **)&vgpu_real_dlsym, vgpu_libc_symbol("dlsym"), __ATOMIC_RELAXED);
    __atomic_store_n((void **)&vgpu_real_dlvsym, vgpu_libc_symbol("dlvsym"), __ATOMIC_RELAXED);
    atomic_store_explicit(&real_dlopen, (dlopen_t)vgpu_libc_symbol("dlopen"), memory_order_release);
}

static void *open_library(library_t library, bool load) {
    void *handle = atomic_load_explicit(&libraries[library], memory_order_acquire);
    if (handle != NULL) {
        return handle;
    }
    vgpu_driver_find_dl();
    dlopen_t open = atomic_load_explicit(&real_dlopen, memory_order_acquire);
    if (open == NULL) {
        return NULL;
    }
    handle = open(library_files[library], RTLD_LAZY_FLAG | RTLD_NOLOAD_FLAG);
    if (handle == NULL && load) {
        handle = open(library_files[library], RTLD_LAZY_FLAG);
        if (handle == NULL) {
            vgpu_log(LOG_INFO, "%s is not there", library_files[library]);
        }
    }
    /* The reference is kept for good: addresses handed out point into the library. */
    atomic_store_explicit(&libraries[library], handle, memory_order_release);
    return handle;
}

static void *symbol(library_t library, const char *name, bool load) {
    void *handle = open_library(library, load);
    return handle == NULL || vgpu_real_dlsym == NULL ? NULL : vgpu_real_dlsym(handle, name);
}

static void *cached(_Atomic(void *) *place, library_t library, const char *name, bool load) {
    void *found = atomic_load_explicit(place, memory_order_relaxed);
    if (found == NULL) {
        found = symbol(library, name, load);
        atomic_store_explicit(place, found, memory_order_relaxed);
    }
    return found;
}

void *vgpu_real(vgpu_hook_t hook) {
    return cached(&hooks[hook], hook_symbols[hook].library, hook_symbols[hook].name, true);
}

void *vgpu_real_if_loaded(vgpu_hook_t hook) {
    return cached(&hooks[hook], hook_symbols[hook].library, hook_symbols[hook].name, false);
}

void *vgpu_helper(vgpu_helper_t helper) {
    const char *name = helper_names[helper];
    return cached(&helpers[helper], name[0] == 'n' ? LIBRARY_NVML : LIBRARY_CUDA, name, true);
}

void *vgpu_cuda_symbol(const char *name) {
    return symbol(LIBRARY_CUDA, name, true);
}

void *vgpu_nvml_symbol(const char *name) {
    return symbol(LIBRARY_NVML, name, true);
}
