/* Walks routes by ways. usage: route_driver LIMIT_MIB BYTES_MIB [route-index …]
 * For every route and way one line of JSON: the result and the change of the share and of the card when the request
 * fits, when it does not, and after the free. */
#include "fake_cuda.h"
#include "routes.h"
#include "symbols.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB    ((size_t)1024 * 1024)
#define ABSENT (-404)

static uint64_t (*card_used)(CUdevice);

struct reading {
    long long share;
    long long card;
};

static struct reading read_now(void) {
    size_t free_bytes = 0;
    size_t total = 0;
    CALL(cuMemGetInfo_v2)(&free_bytes, &total);
    return (struct reading){.share = (long long)(total - free_bytes), .card = (long long)card_used(0)};
}

static struct reading change_since(struct reading before) {
    struct reading now = read_now();
    return (struct reading){.share = now.share - before.share, .card = now.card - before.card};
}

static bool present(const struct route *route) {
    for (size_t i = 0; i < 3 && route->needs[i] != NULL; i++) {
        if (find(route->needs[i]) == NULL) {
            return false;
        }
    }
    return true;
}

static void print_step(const char *step, CUresult result, struct reading change) {
    printf(", \"%s\": [%d, %lld, %lld]", step, result, change.share, change.card);
}

/* Fills the share so that half of the request is left, then asks for all of it. */
static void try_over(const struct route *route, size_t limit, size_t bytes) {
    struct held held = {.bytes = bytes};
    CUdeviceptr filler = 0;
    size_t used = (size_t)read_now().share;
    CUresult filled = CALL(cuMemAlloc_v2)(&filler, limit - used - bytes / 2);
    struct reading before = read_now();
    CUresult result = route->take(&held);
    print_step("over", filled == CUDA_SUCCESS ? result : -1, change_since(before));
    if (result == CUDA_SUCCESS) {
        route->give(&held);
    }
    CALL(cuMemFree_v2)(filler);
}

static void try_case(const struct route *route, enum way way, size_t limit, size_t bytes) {
    struct held held = {.bytes = bytes};
    printf("{\"route\": \"%s\", \"way\": \"%s\", \"charged\": %s", route->name, way_name(way),
           route->charged ? "true" : "false");
    if (!present(route)) {
        printf(", \"absent\": true}\n");
        return;
    }
    struct reading before = read_now();
    CUresult result = route->take(&held);
    print_step("fit", result, change_since(before));
    result = result == CUDA_SUCCESS ? route->give(&held) : ABSENT;
    print_step("free", result, change_since(before));
    try_over(route, limit, bytes);
    print_step("left", 0, change_since(before));
    printf("}\n");
}

static bool chosen(int argc, char **argv, const char *name) {
    bool any = argc <= 3;
    for (int i = 3; i < argc; i++) {
        any = any || strcmp(argv[i], name) == 0;
    }
    return any;
}

static void walk(enum way way, int argc, char **argv) {
    CUcontext context;
    use_way(way);
    if (find("cuInit") == NULL) {
        return;
    }
    if (CALL(cuInit)(0) != CUDA_SUCCESS || CALL(cuDevicePrimaryCtxRetain)(&context, 0) != CUDA_SUCCESS) {
        printf("{\"way\": \"%s\", \"failed\": true}\n", way_name(way));
        return;
    }
    CALL(cuCtxSetCurrent)(context);
    for (size_t i = 0; i < route_count; i++) {
        if (chosen(argc, argv, routes[i].name)) {
            try_case(&routes[i], way, strtoull(argv[1], NULL, 10) * MIB, strtoull(argv[2], NULL, 10) * MIB);
        }
    }
    CALL(cuDevicePrimaryCtxRelease_v2)(0);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        return 64;
    }
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    card_used = driver == NULL ? NULL : (uint64_t (*)(CUdevice))dlsym(driver, "fakeCardUsed");
    if (card_used == NULL) {
        fprintf(stderr, "the stand-in driver is not there: %s\n", dlerror());
        return 1;
    }
    for (enum way way = WAY_LINK; way < WAY_COUNT; way++) {
        walk(way, argc, argv);
    }
    return 0;
}
