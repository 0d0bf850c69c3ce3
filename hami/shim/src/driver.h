/*
 * The real libraries behind the hooks: the C library's dlsym and friends, the CUDA driver and NVML.
 *
 * The dl* functions are found by walking the loaded libraries' own symbol tables, never by calling dlsym or dlvsym
 * (which are ours), and without a versioned reference that an older C library would lack.
 */
#ifndef HAMI_SHIM_DRIVER_H
#define HAMI_SHIM_DRIVER_H

#include <stdbool.h>

#include "cuda_min.h"
#include "nvml_min.h"

#define HOOK(library, symbol, base, version, ptsz) HOOK_##symbol,
typedef enum {
#include "hooks.def"
    HOOK_COUNT
} vgpu_hook_t;
#undef HOOK

/* The C library's own functions; NULL where it has none. Called from assembly too. */
extern void *(*vgpu_real_dlsym)(void *, const char *);
extern void *(*vgpu_real_dlvsym)(void *, const char *, const char *);

/* Find the functions above; safe to call often and from any thread. */
void vgpu_driver_find_dl(void);

/* The real library's function for a hook, loading the library if needed; NULL if it has none. */
void *vgpu_real(vgpu_hook_t hook);

/* As vgpu_real, but NULL when the library is not loaded yet: a look-up must not load a driver. */
void *vgpu_real_if_loaded(vgpu_hook_t hook);

/* Any other function of the CUDA driver or of NVML, by name. */
void *vgpu_cuda_symbol(const char *name);
void *vgpu_nvml_symbol(const char *name);

/* The real function behind a hook, with its type. */
#define REAL(symbol) ((__typeof__(&symbol))vgpu_real(HOOK_##symbol))

/* A driver function that we call but do not hook. */
#define DRIVER(symbol) ((__typeof__(&symbol))vgpu_helper(VGPU_HELPER_##symbol))

#define VGPU_HELPERS(X)                                                                                                \
    X(cuCtxGetCurrent)                                                                                                 \
    X(cuCtxGetDevice)                                                                                                  \
    X(cuCtxPopCurrent_v2)                                                                                              \
    X(cuCtxPushCurrent_v2)                                                                                             \
    X(cuDeviceGet)                                                                                                     \
    X(cuDeviceGetCount)                                                                                                \
    X(cuDeviceGetDefaultMemPool)                                                                                       \
    X(cuDeviceGetGraphMemAttribute)                                                                                    \
    X(cuDeviceGetMemPool)                                                                                              \
    X(cuDeviceGetUuid)                                                                                                 \
    X(cuMemPoolGetAttribute)                                                                                           \
    X(cuStreamGetCaptureInfo_v2)                                                                                       \
    X(cuStreamGetCtx)                                                                                                  \
    X(cuStreamIsCapturing)                                                                                             \
    X(nvmlDeviceGetHandleByUUID)                                                                                       \
    X(nvmlDeviceGetIndex)                                                                                              \
    X(nvmlDeviceGetUUID)                                                                                               \
    X(nvmlInit_v2)                                                                                                     \
    X(nvmlShutdown)

#define VGPU_HELPER_ENUM(name) VGPU_HELPER_##name,
typedef enum { VGPU_HELPERS(VGPU_HELPER_ENUM) VGPU_HELPER_COUNT } vgpu_helper_t;
#undef VGPU_HELPER_ENUM

void *vgpu_helper(vgpu_helper_t helper);

#endif
