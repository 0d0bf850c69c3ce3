/* What each name resolves to. For every name of the stand-in driver: cuGetProcAddress in both forms with the version
 * and stream flag of each line, and dlsym. Prints one line of JSON each: the symbol and file behind the answer. */
#include "symbols.h"

#include "cuda_min.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef CUresult (*proc1_t)(const char *, void **, int, uint64_t);
typedef CUresult (*proc2_t)(const char *, void **, int, uint64_t, int *);

static void print(const char *by, const char *name, int version, int flags, int result, int status, void *address) {
    Dl_info where = {0};
    if (address != NULL) {
        dladdr(address, &where);
    }
    const char *file = where.dli_fname != NULL ? strrchr(where.dli_fname, '/') : NULL;
    printf("{\"by\": \"%s\", \"name\": \"%s\", \"version\": %d, \"flags\": %d, \"result\": %d, \"status\": %d, "
           "\"symbol\": \"%s\", \"file\": \"%s\"}\n",
           by, name, version, flags, result, status, where.dli_sname != NULL ? where.dli_sname : "",
           file != NULL ? file + 1 : "");
}

static void ask(proc1_t first, proc2_t second, const char *name, int version, int flags) {
    void *address = NULL;
    if (first != NULL) {
        CUresult result = first(name, &address, version, (uint64_t)flags);
        print("proc1", name, version, flags, result, -1, address);
    }
    if (second != NULL) {
        int status = -1;
        address = NULL;
        CUresult result = second(name, &address, version, (uint64_t)flags, &status);
        print("proc2", name, version, flags, result, status, address);
    }
}

int main(void) {
    static const int versions[] = {2000, 3020, 4000, 7000, 11000, 11030, 11040, 12000, 12030, 12050, 13000, 13050};
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    proc1_t first = (proc1_t)dlsym(driver, "cuGetProcAddress");
    proc2_t second = (proc2_t)dlsym(driver, "cuGetProcAddress_v2");
    ask(first, second, "", 0, 0);
    ask(first, second, "cuNoSuchFunction", 12000, 0);
    for (size_t i = 0; i < symbol_count; i++) {
        print("dlsym", symbols[i].symbol, 0, 0, 0, 0, dlsym(driver, symbols[i].symbol));
        for (size_t v = 0; v < sizeof versions / sizeof versions[0]; v++) {
            ask(first, second, symbols[i].base, versions[v], 0);
            ask(first, second, symbols[i].base, versions[v], 2);
        }
    }
    if (second != NULL) {
        void *address = NULL;
        CUresult result = second("cuMemAlloc", &address, 12000, 0, NULL);
        print("no status", "cuMemAlloc", 12000, 0, result, 0, address);
        print("no pointer", "cuMemAlloc", 12000, 0, second("cuMemAlloc", NULL, 12000, 0, NULL), 0, NULL);
    }
    return 0;
}
