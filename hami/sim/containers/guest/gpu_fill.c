/* Takes GPU memory step by step until it is refused, says what it got and what it was told, then holds it.
 *
 * usage: gpu-fill [STEP_MIB [HOLD_S [EXIT_CODE]]]     HOLD_S: seconds, -1 until told to end (the default)
 * One line of JSON a card, then one that says that all was taken:
 *   {"card":0,"limit_mib":3000,"free_mib":3000,"taken_mib":3000,"left_mib":0,"refusal":2}
 *   {"holding":true,"cards":1}
 * limit_mib is what cuMemGetInfo calls the total. Without a driver: {"holding":true,"cards":0}. The driver is found by
 * dlopen and dlsym, as frameworks do it.
 */
#include "cuda_min.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MIB       ((size_t)1024 * 1024)
#define BLOCK_MAX 65536

static __typeof__(&cuInit) init;
static __typeof__(&cuDeviceGetCount) count_cards;
static __typeof__(&cuDevicePrimaryCtxRetain) retain;
static __typeof__(&cuCtxSetCurrent) use;
static __typeof__(&cuMemGetInfo_v2) memory;
static __typeof__(&cuMemAlloc_v2) take;

static void check(CUresult result, const char *what) {
    if (result != CUDA_SUCCESS) {
        printf("{\"failed\":\"%s\",\"code\":%d}\n", what, (int)result);
        fflush(stdout);
        exit(1);
    }
}

static void *find(void *driver, const char *name) {
    void *found = dlsym(driver, name);
    if (found == NULL) {
        check(CUDA_ERROR_NOT_FOUND, name);
    }
    return found;
}

static int load_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        return 0;
    }
    *(void **)&init = find(driver, "cuInit");
    *(void **)&count_cards = find(driver, "cuDeviceGetCount");
    *(void **)&retain = find(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&use = find(driver, "cuCtxSetCurrent");
    *(void **)&memory = find(driver, "cuMemGetInfo_v2");
    *(void **)&take = find(driver, "cuMemAlloc_v2");
    return 1;
}

/* Whole steps while they are granted, then halves, so that the last MiB is reached. Returns the code of the refusal. */
static CUresult take_all(size_t step_mib, size_t *taken_mib) {
    CUresult refusal = CUDA_SUCCESS;
    int blocks = 0;
    for (size_t step = step_mib; step > 0 && blocks < BLOCK_MAX; step /= 2) {
        for (; blocks < BLOCK_MAX; blocks++) {
            CUdeviceptr pointer;
            CUresult result = take(&pointer, step * MIB);
            if (result != CUDA_SUCCESS) {
                refusal = result;
                break;
            }
            *taken_mib += step;
        }
    }
    return refusal;
}

static void fill(int card, size_t step_mib) {
    CUcontext context;
    size_t before = 0;
    size_t after = 0;
    size_t total = 0;
    size_t taken_mib = 0;
    check(retain(&context, card), "cuDevicePrimaryCtxRetain");
    check(use(context), "cuCtxSetCurrent");
    check(memory(&before, &total), "cuMemGetInfo");
    CUresult refusal = take_all(step_mib, &taken_mib);
    check(memory(&after, &total), "cuMemGetInfo");
    printf("{\"card\":%d,\"limit_mib\":%zu,\"free_mib\":%zu,\"taken_mib\":%zu,\"left_mib\":%zu,\"refusal\":%d}\n", card,
           total / MIB, before / MIB, taken_mib, after / MIB, (int)refusal);
    fflush(stdout);
}

/* Waits for the time to pass (-1: for ever) or for a signal to end, which is blocked. Returns whether it came. */
static int hold(double seconds, const sigset_t *endings) {
    struct timespec limit = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    return (seconds < 0 ? sigwaitinfo(endings, NULL) : sigtimedwait(endings, NULL, &limit)) > 0;
}

int main(int argc, char **argv) {
    size_t step_mib = argc > 1 ? strtoull(argv[1], NULL, 10) : 256;
    double hold_s = argc > 2 ? strtod(argv[2], NULL) : -1;
    int cards = 0;
    sigset_t endings;
    sigemptyset(&endings);
    sigaddset(&endings, SIGTERM);
    sigaddset(&endings, SIGINT);
    sigprocmask(SIG_BLOCK, &endings, NULL);
    if (load_driver()) {
        check(init(0), "cuInit");
        check(count_cards(&cards), "cuDeviceGetCount");
    }
    for (int card = 0; card < cards; card++) {
        fill(card, step_mib);
    }
    printf("{\"holding\":true,\"cards\":%d}\n", cards);
    fflush(stdout);
    return hold(hold_s, &endings) ? 143 : argc > 3 ? atoi(argv[3]) : 0;
}
