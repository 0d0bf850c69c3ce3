/* Another preloaded library, of the kind that wraps a C function and asks dlsym(RTLD_NEXT) for the real one. */
#include <dlfcn.h>
#include <string.h>

static int (*real_strcmp)(const char *, const char *);
static int (*real_puts)(const char *);

__attribute__((constructor)) static void find(void) {
    real_puts = (int (*)(const char *))dlsym(RTLD_NEXT, "puts");
    real_strcmp = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "strcmp");
}

__attribute__((visibility("default"))) int puts(const char *text) {
    if (real_puts == puts || real_puts == NULL || real_strcmp == NULL) {
        return -1;
    }
    return real_puts(text);
}
