/* A preloaded library that takes over dlsym and hands everything on, as VirtualGL and profilers do. */
#include <dlfcn.h>
#include <stddef.h>

typedef void *(*dlsym_t)(void *, const char *);

void *dlsym(void *handle, const char *name) {
    static dlsym_t next;
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    for (size_t i = 0; next == NULL && i < sizeof versions / sizeof *versions; i++) {
        next = (dlsym_t)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    }
    return next(handle, name);
}
