/* Nanoseconds per call of what programs do most. usage: speed [scale]; prints one line of JSON. Run with and without
 * the shim in turn: the stand-in driver's own cost is in both. */
#include "scenario.h"

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

enum { LIVE = 10000, THREADS = 8, REPEATS = 5 };

static CUdeviceptr live[LIVE];
static long scale = 1;

static double now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e9 + (double)at.tv_nsec;
}

/* The best of a few repeats: noise of the machine only ever adds. */
static double best_of(void (*work)(long), long count) {
    double best = 1e18;
    for (int i = 0; i < REPEATS; i++) {
        double began = now_ns();
        work(count);
        double each = (now_ns() - began) / (double)count;
        best = each < best ? each : best;
    }
    return best;
}

static void pairs(long count) {
    for (long i = 0; i < count; i++) {
        CUdeviceptr pointer;
        CHECK(cuMemAlloc_v2(&pointer, 2 * MIB));
        CHECK(cuMemFree_v2(pointer));
    }
}

static void async_pairs(long count) {
    for (long i = 0; i < count; i++) {
        CUdeviceptr pointer;
        CHECK(cuMemAllocAsync(&pointer, 65536, NULL));
        CHECK(cuMemFreeAsync(pointer, NULL));
    }
}

static void queries(long count) {
    size_t free_bytes;
    size_t total;
    for (long i = 0; i < count; i++) {
        CHECK(cuMemGetInfo_v2(&free_bytes, &total));
    }
}

static __typeof__(&cuLaunchKernel) launch;

static void launches(long count) {
    for (long i = 0; i < count; i++) {
        launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    }
}

static void lookups(long count) {
    for (long i = 0; i < count; i++) {
        void *address;
        cuGetProcAddress("cuMemAlloc", &address, 11030, 0);
    }
}

static void *thread_pairs(void *argument) {
    CUcontext context;
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    pairs(*(long *)argument);
    return NULL;
}

static void threaded_pairs(long count) {
    pthread_t threads[THREADS];
    long each = count / THREADS;
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, thread_pairs, &each);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
}

int main(int argc, char **argv) {
    scale = argc > 1 ? atol(argv[1]) : 1;
    begin();
    launch = (__typeof__(&cuLaunchKernel))dlsym(RTLD_DEFAULT, "cuLaunchKernel");
    printf("{\"launch\": %.1f", best_of(launches, 200000 * scale));
    printf(", \"alloc+free\": %.1f", best_of(pairs, 20000 * scale));
    printf(", \"async alloc+free\": %.1f", best_of(async_pairs, 20000 * scale));
    printf(", \"memory query\": %.1f", best_of(queries, 500 * scale));
    printf(", \"cuGetProcAddress\": %.1f", best_of(lookups, 20000 * scale));
    printf(", \"alloc+free, 8 threads\": %.1f", best_of(threaded_pairs, 20000 * scale));
    for (int i = 0; i < LIVE; i++) {
        CHECK(cuMemAlloc_v2(&live[i], 4096));
    }
    printf(", \"alloc+free, 10,000 live\": %.1f}\n", best_of(pairs, 20000 * scale));
    return 0;
}
