/* CPU time of one allocation and its free while others do the same, in processes or in threads.
 * usage: contend PROCESSES THREADS PAIRS [bare]; prints nanoseconds of CPU (user and system) per pair as JSON.
 * bare: run without the shim; the program itself then does what no limiter can do without: under a robust mutex that
 * all processes share it adds up everybody's bytes, compares with a limit and books its own, and books them back. */
#include "scenario.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS = 64, BLOCK = 65536 };

static struct {
    pthread_mutex_t lock;
    pthread_barrier_t barrier;
    struct {
        unsigned long long used;
        char apart[120]; /* as far from each other as records of processes are */
    } slots[SLOTS];
} *shared;

static int slots;
static bool bare;
static long pairs;

static void share(int parties) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t robust;
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&shared->lock, &robust);
    pthread_barrierattr_t everywhere;
    pthread_barrierattr_init(&everywhere);
    pthread_barrierattr_setpshared(&everywhere, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &everywhere, (unsigned int)parties);
}

static void lock_shared(void) {
    if (pthread_mutex_lock(&shared->lock) == EOWNERDEAD) {
        pthread_mutex_consistent(&shared->lock);
    }
}

static void book(int me, bool take) {
    lock_shared();
    unsigned long long sum = 0;
    for (int i = 0; i < slots; i++) {
        sum += shared->slots[i].used;
    }
    EXPECT(!take || sum + BLOCK <= 8192 * MIB);
    shared->slots[me].used += take ? BLOCK : (unsigned long long)-BLOCK;
    pthread_mutex_unlock(&shared->lock);
}

static void *work(void *argument) {
    int me = *(int *)argument;
    CUcontext context;
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    pthread_barrier_wait(&shared->barrier);
    for (long i = 0; i < pairs; i++) {
        CUdeviceptr pointer;
        if (bare) {
            book(me, true);
        }
        CHECK(cuMemAlloc_v2(&pointer, BLOCK));
        CHECK(cuMemFree_v2(pointer));
        if (bare) {
            book(me, false);
        }
    }
    return NULL;
}

static double cpu_ns(int who) {
    struct rusage use;
    getrusage(who, &use);
    return ((double)use.ru_utime.tv_sec + (double)use.ru_stime.tv_sec) * 1e9 +
           ((double)use.ru_utime.tv_usec + (double)use.ru_stime.tv_usec) * 1e3;
}

static void one_process(int me, int threads) {
    pthread_t running[SLOTS];
    begin();
    for (int i = 0; i < threads; i++) {
        pthread_create(&running[i], NULL, work, &me);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(running[i], NULL);
    }
}

static double of_children(int processes, int threads) {
    double before = cpu_ns(RUSAGE_CHILDREN);
    for (int me = 0; me < processes; me++) {
        if (fork() == 0) {
            one_process(me, threads);
            exit(0);
        }
    }
    for (int me = 0; me < processes; me++) {
        int status;
        EXPECT(wait(&status) > 0 && status == 0);
    }
    return cpu_ns(RUSAGE_CHILDREN) - before;
}

int main(int argc, char **argv) {
    EXPECT(argc > 3);
    int processes = atoi(argv[1]);
    int threads = atoi(argv[2]);
    long wanted = atol(argv[3]);
    EXPECT(processes > 0 && threads > 0 && processes <= SLOTS && threads <= SLOTS && wanted > 0);
    bare = argc > 4;
    slots = processes;
    share(processes * threads);
    pairs = 1; /* what starting costs is not asked for */
    double start_ns = of_children(processes, threads);
    pairs = wanted + 1;
    double all_ns = of_children(processes, threads);
    printf("{\"cpu_ns\": %.1f}\n", (all_ns - start_ns) / (double)(wanted * processes * threads));
    return 0;
}
