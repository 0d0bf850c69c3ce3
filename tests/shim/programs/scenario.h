/* Named checks inside one program: the first argument chooses one, the exit status is 0 when all it expects held. */
#ifndef SHIM_SCENARIO_H
#define SHIM_SCENARIO_H

#include "fake_cuda.h"
#include "program.h"

#include <string.h>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("line %d: %s\n", __LINE__, #condition);                                                             \
            fflush(stdout);                                                                                            \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

#define EXPECT_CODE(call, code)                                                                                        \
    do {                                                                                                               \
        CUresult result_ = (call);                                                                                     \
        if (result_ != (code)) {                                                                                       \
            printf("line %d: %s -> %d, not %d\n", __LINE__, #call, result_, (int)(code));                              \
            fflush(stdout);                                                                                            \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

struct scenario {
    const char *name;
    void (*run)(void);
};

static inline void begin(void) {
    char *none[] = {"scenario", NULL};
    start(1, none);
}

static inline size_t used(void) {
    size_t free_bytes = 0;
    size_t total = 0;
    CHECK(cuMemGetInfo_v2(&free_bytes, &total));
    return total - free_bytes;
}

static inline int run_scenario(const struct scenario *scenarios, size_t count, int argc, char **argv) {
    for (size_t i = 0; i < count; i++) {
        if (argc > 1 && strcmp(argv[1], scenarios[i].name) == 0) {
            scenarios[i].run();
            return 0;
        }
    }
    fprintf(stderr, "no such scenario\n");
    return 64;
}

#endif
