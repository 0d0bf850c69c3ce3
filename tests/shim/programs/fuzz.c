/* Random takes and gives by all routes in one process; after each step the share must show what the card holds.
 * usage: fuzz SEED STEPS. With FAKE_GPU_FAIL set, single calls of the driver fail in between. */
#include "routes.h"
#include "scenario.h"
#include "symbols.h"

#define PLACES 24

static unsigned int next(unsigned int *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static struct place {
    const struct route *route;
    struct held held;
} places[PLACES];

static bool present(const struct route *route) {
    for (size_t i = 0; i < 3 && route->needs[i] != NULL; i++) {
        if (find(route->needs[i]) == NULL) {
            return false;
        }
    }
    return true;
}

static void compare(unsigned int step, const char *verb, const char *name, CUresult result) {
    size_t share = used();
    size_t card = fakeCardUsedByMe(0);
    if (share != card) {
        printf("step %u: %s %s -> %d: share shows %zu, card %zu\n", step, verb, name, result, share, card);
        exit(1);
    }
}

static void one_step(unsigned int step, unsigned int *seed) {
    struct place *place = &places[next(seed) % PLACES];
    CUresult result;
    if (place->route != NULL) {
        result = place->route->give(&place->held);
        const char *name = place->route->name;
        place->route = NULL; /* a pool that others still use refuses to go; what was in it is given back all the same */
        CHECK(cuStreamSynchronize(NULL));
        compare(step, "give", name, result);
        return;
    }
    const struct route *route = &routes[next(seed) % route_count];
    if (!present(route)) {
        return;
    }
    memset(&place->held, 0, sizeof place->held);
    place->held.bytes = (1 + next(seed) % 40) * 2 * MIB;
    result = route->take(&place->held);
    place->route = result == CUDA_SUCCESS ? route : NULL;
    CHECK(cuStreamSynchronize(NULL));
    compare(step, "take", route->name, result);
}

int main(int argc, char **argv) {
    unsigned int seed = argc > 1 ? (unsigned int)strtoul(argv[1], NULL, 10) : 1;
    unsigned int steps = argc > 2 ? (unsigned int)strtoul(argv[2], NULL, 10) : 1000;
    use_way(WAY_DLSYM);
    begin();
    for (unsigned int step = 0; step < steps; step++) {
        one_step(step, &seed);
    }
    for (int i = 0; i < PLACES; i++) {
        if (places[i].route != NULL) {
            places[i].route->give(&places[i].held);
        }
    }
    CHECK(cuStreamSynchronize(NULL));
    compare(steps, "end", "", CUDA_SUCCESS);
    printf("well\n");
    return 0;
}
