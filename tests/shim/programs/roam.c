/* Threads that change their current card all the time, take memory of other cards than the current one, and give back
 * what other threads took; between the phases each card's share must show what the card holds.
 * usage: roam CARDS THREADS PHASES STEPS SEED */
#include "scenario.h"

#include <pthread.h>
#include <unistd.h>

enum { MOST_CARDS = 16, MOST_THREADS = 64, PLACES = 96 };

typedef enum { NOTHING, PLAIN, ON_STREAM, FROM_POOL, HANDLE, ARRAY } kind_t;

static const char *const names[] = {"", "plain", "on stream", "from pool", "handle", "array"};

static struct place {
    pthread_mutex_t lock;
    kind_t kind;
    int card;
    CUdeviceptr pointer;
    CUmemGenericAllocationHandle handle;
    CUarray array;
} places[PLACES];

static CUcontext contexts[MOST_CARDS];
static CUstream streams[MOST_CARDS];
static CUmemoryPool pools[MOST_CARDS];
static pthread_barrier_t barrier;
static _Atomic unsigned long taken[ARRAY + 1];
static _Atomic unsigned long refused;
static int cards;
static int threads;
static int phases;
static int steps;

static unsigned int next(unsigned int *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static CUresult take(struct place *place, kind_t kind, size_t bytes) {
    switch (kind) {
    case PLAIN:
        return cuMemAlloc_v2(&place->pointer, bytes);
    case ON_STREAM:
        return cuMemAllocAsync(&place->pointer, bytes, streams[place->card]);
    case FROM_POOL:
        return cuMemAllocFromPoolAsync(&place->pointer, bytes, pools[place->card], streams[place->card]);
    case HANDLE: {
        CUmemAllocationProp props = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                     .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = place->card}};
        return cuMemCreate(&place->handle, bytes, &props, 0);
    }
    default: {
        CUDA_ARRAY_DESCRIPTOR shape = {1024, bytes / 4096, CU_AD_FORMAT_FLOAT, 1};
        return cuArrayCreate_v2(&place->array, &shape);
    }
    }
}

static void give(const struct place *place) {
    switch (place->kind) {
    case PLAIN:
        CHECK(cuMemFree_v2(place->pointer));
        break;
    case ON_STREAM:
    case FROM_POOL:
        CHECK(cuMemFreeAsync(place->pointer, streams[place->card]));
        break;
    case HANDLE:
        CHECK(cuMemRelease(place->handle));
        break;
    default:
        CHECK(cuArrayDestroy(place->array));
    }
}

static void one_step(unsigned int *seed) {
    struct place *place = &places[next(seed) % PLACES];
    pthread_mutex_lock(&place->lock);
    CHECK(cuCtxSetCurrent(contexts[next(seed) % (unsigned int)cards]));
    if (place->kind != NOTHING) {
        give(place);
        place->kind = NOTHING;
    } else {
        kind_t kind = (kind_t)(PLAIN + next(seed) % ARRAY);
        place->card = (int)(next(seed) % (unsigned int)cards);
        CUresult result = take(place, kind, (1 + next(seed) % 8) * 2 * MIB);
        EXPECT(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
        place->kind = result == CUDA_SUCCESS ? kind : NOTHING;
        (*(result == CUDA_SUCCESS ? &taken[kind] : &refused))++;
    }
    pthread_mutex_unlock(&place->lock);
}

static void compare(int phase) {
    for (int card = 0; card < cards; card++) {
        CHECK(cuCtxSetCurrent(contexts[card]));
        CHECK(cuCtxSynchronize());
        CHECK(cuStreamSynchronize(streams[card]));
        size_t share = used();
        size_t truth = fakeCardUsedByMe(card);
        if (share != truth) {
            printf("phase %d card %d: share shows %zu, card %zu\n", phase, card, share, truth);
            exit(1);
        }
    }
}

static void *work(void *argument) {
    unsigned int seed = *(unsigned int *)argument;
    for (int phase = 0; phase < phases; phase++) {
        for (int step = 0; step < steps; step++) {
            one_step(&seed);
        }
        if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
            compare(phase);
        }
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void prepare(void) {
    CHECK(cuInit(0));
    for (int card = 0; card < cards; card++) {
        CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = card}};
        CHECK(cuDevicePrimaryCtxRetain(&contexts[card], card));
        CHECK(cuCtxSetCurrent(contexts[card]));
        CHECK(cuStreamCreate(&streams[card], 0));
        CHECK(cuMemPoolCreate(&pools[card], &props));
    }
    for (int i = 0; i < PLACES; i++) {
        pthread_mutex_init(&places[i].lock, NULL);
    }
    pthread_barrier_init(&barrier, NULL, (unsigned int)threads);
}

int main(int argc, char **argv) {
    EXPECT(argc == 6);
    cards = atoi(argv[1]);
    threads = atoi(argv[2]);
    phases = atoi(argv[3]);
    steps = atoi(argv[4]);
    EXPECT(cards > 0 && cards <= MOST_CARDS && threads > 0 && threads <= MOST_THREADS);
    prepare();
    pthread_t started[MOST_THREADS];
    unsigned int seeds[MOST_THREADS];
    for (int i = 0; i < threads; i++) {
        seeds[i] = (unsigned int)atoi(argv[5]) * 1000u + (unsigned int)i;
        pthread_create(&started[i], NULL, work, &seeds[i]);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(started[i], NULL);
    }
    for (int i = 0; i < PLACES; i++) {
        if (places[i].kind != NOTHING) {
            give(&places[i]);
        }
    }
    compare(phases);
    printf("{\"refused\": %lu", refused);
    for (int kind = PLAIN; kind <= ARRAY; kind++) {
        printf(", \"%s\": %lu", names[kind], taken[kind]);
    }
    printf("}\n");
    return 0;
}
