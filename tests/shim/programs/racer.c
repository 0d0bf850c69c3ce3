/* N processes take blocks of the same size at the same moment, again and again.
 * usage: racer PROCESSES ROUNDS BLOCK_KIB EXPECTED [mixed]
 * mixed: every third process takes physical memory, every third stream-ordered memory.
 * Prints how many rounds ended with more or fewer blocks than EXPECTED held by all together. */
#include "fake_cuda.h"
#include "program.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_HELD 4096

struct shared {
    pthread_barrier_t barrier;
    atomic_long granted;
    atomic_long other_errors;
    long over;
    long under;
    long left;
};

static struct shared *shared;
static CUdeviceptr held[MAX_HELD];
static CUmemGenericAllocationHandle handles[MAX_HELD];
static int route; /* 0 plain, 1 physical memory, 2 stream-ordered */

static CUresult take(long i, size_t block) {
    CUmemAllocationProp props = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    return route == 1   ? cuMemCreate(&handles[i], block, &props, 0)
           : route == 2 ? cuMemAllocAsync(&held[i], block, NULL)
                        : cuMemAlloc_v2(&held[i], block);
}

static CUresult give(long i) {
    return route == 1 ? cuMemRelease(handles[i]) : route == 2 ? cuMemFreeAsync(held[i], NULL) : cuMemFree_v2(held[i]);
}

static size_t used_now(void) {
    size_t free_bytes = 0;
    size_t total = 0;
    CHECK(cuMemGetInfo_v2(&free_bytes, &total));
    return total - free_bytes;
}

static long take_until_refused(size_t block) {
    long count = 0;
    while (count < MAX_HELD) {
        CUresult result = take(count, block);
        if (result != CUDA_SUCCESS) {
            if (result != CUDA_ERROR_OUT_OF_MEMORY) {
                atomic_fetch_add(&shared->other_errors, 1);
            }
            return count;
        }
        count++;
        atomic_fetch_add(&shared->granted, 1);
    }
    return count;
}

static void judge(long expected) {
    long granted = atomic_exchange(&shared->granted, 0);
    shared->over += granted > expected;
    shared->under += granted < expected;
}

static void race(int me, int rounds, size_t block, long expected) {
    char *arguments[] = {"racer", NULL};
    start(1, arguments);
    for (int round = 0; round < rounds; round++) {
        pthread_barrier_wait(&shared->barrier);
        long count = take_until_refused(block);
        pthread_barrier_wait(&shared->barrier);
        if (me == 0) {
            judge(expected);
        }
        for (long i = 0; i < count; i++) {
            CHECK(give(i));
        }
        CHECK(cuStreamSynchronize(NULL));
        pthread_barrier_wait(&shared->barrier);
        if (me == 0 && used_now() != 0) {
            shared->left++;
        }
    }
}

int main(int argc, char **argv) {
    if (argc < 5) {
        return 64;
    }
    int processes = atoi(argv[1]);
    int rounds = atoi(argv[2]);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(shared, 0, sizeof *shared);
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attributes, (unsigned int)processes);
    for (int i = 0; i < processes; i++) {
        if (fork() == 0) {
            route = argc > 5 ? i % 3 : 0;
            alarm(900);
            race(i, rounds, strtoull(argv[3], NULL, 10) * 1024, atol(argv[4]));
            exit(0);
        }
    }
    int failed = 0;
    for (int i = 0; i < processes; i++) {
        int status = 0;
        wait(&status);
        failed += status != 0;
    }
    printf("{\"over\": %ld, \"under\": %ld, \"left\": %ld, \"errors\": %ld, \"failed\": %d}\n", shared->over,
           shared->under, shared->left, atomic_load(&shared->other_errors), failed);
    return 0;
}
