/* For each line of standard input: tries to take that many MiB and frees them, until it works or a second has passed.
 * Prints the milliseconds it took, or -1. One that lives through other processes' deaths. */
#include "program.h"

#include <time.h>

static double now_ms(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e3 + (double)at.tv_nsec / 1e6;
}

static double try_for_a_second(size_t bytes) {
    double began = now_ms();
    do {
        CUdeviceptr pointer;
        if (cuMemAlloc_v2(&pointer, bytes) == CUDA_SUCCESS) {
            cuMemFree_v2(pointer);
            return now_ms() - began;
        }
        struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
    } while (now_ms() - began < 1000);
    return -1;
}

int main(int argc, char **argv) {
    (void)argc;
    char *none[] = {argv[0], NULL};
    char line[64];
    start(1, none);
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        printf("%.3f\n", try_for_a_second(strtoull(line, NULL, 10) * MIB));
        fflush(stdout);
    }
    return 0;
}
