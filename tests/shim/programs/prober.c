/* For each line of standard input: tries to take that many MiB and frees them, until it works or a second has passed.
 * Prints the milliseconds it took, or -1. One that lives through other processes' deaths.
 * Time in which the machine let nobody of this process run is no time that the limiter took: a second thread, which
 * waits for nobody, measures it. */
#include "program.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { PAUSE_NS = 1000000, STALL_MS = 5 };

static atomic_long stalled_us;

static double now_ms(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e3 + (double)at.tv_nsec / 1e6;
}

static void rest(void) {
    struct timespec pause = {.tv_nsec = PAUSE_NS};
    nanosleep(&pause, NULL);
}

static void *watch_the_machine(void *unused) {
    for (;;) {
        double began = now_ms();
        rest();
        double late = now_ms() - began - PAUSE_NS / 1e6;
        if (late > STALL_MS) {
            atomic_fetch_add(&stalled_us, (long)(late * 1e3));
        }
    }
    return unused;
}

/* Stalls are known a moment after they ended: whoever was stalled, too, waits for the watcher's next look. */
static double own_ms(double began, long stalled_before_us) {
    double took = now_ms() - began;
    if (took > STALL_MS) {
        rest();
        rest();
        took -= (double)(atomic_load(&stalled_us) - stalled_before_us) / 1e3;
    }
    return took > 0 ? took : 0;
}

static double try_for_a_second(size_t bytes) {
    long stalled_before_us = atomic_load(&stalled_us);
    double began = now_ms();
    double took;
    do {
        CUdeviceptr pointer;
        CUresult result = cuMemAlloc_v2(&pointer, bytes);
        took = own_ms(began, stalled_before_us);
        if (result == CUDA_SUCCESS) {
            cuMemFree_v2(pointer);
            return took;
        }
        rest();
    } while (took < 1000);
    return -1;
}

int main(int argc, char **argv) {
    (void)argc;
    char *none[] = {argv[0], NULL};
    char line[64];
    pthread_t watcher;
    start(1, none);
    if (pthread_create(&watcher, NULL, watch_the_machine, NULL) != 0) {
        return 1;
    }
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        printf("%.3f\n", try_for_a_second(strtoull(line, NULL, 10) * MIB));
        fflush(stdout);
    }
    return 0;
}
