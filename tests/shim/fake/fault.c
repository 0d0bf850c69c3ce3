/* Error injection of the stand-in driver: fail, slow down or kill in a chosen call. See card.h. */
#include "card.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_FAULTS 16

enum kind { FAIL, KILL, DELAY };

struct fault {
    char function[64];
    enum kind kind;
    long first;
    long second;
    atomic_ulong calls;
};

bool fake_faults_armed;
static struct fault faults[MAX_FAULTS];
static int fault_count;

static void read_faults(const char *variable, enum kind kind) {
    const char *text = getenv(variable);
    while (text != NULL && *text != '\0' && fault_count < MAX_FAULTS) {
        struct fault *fault = &faults[fault_count];
        fault->second = 0;
        if (sscanf(text, "%63[^:,]:%ld:%ld", fault->function, &fault->first, &fault->second) >= 2) {
            fault->kind = kind;
            fault_count++;
        }
        text = strchr(text, ',');
        text = text == NULL ? NULL : text + 1;
    }
}

__attribute__((constructor)) static void arm(void) {
    read_faults("FAKE_GPU_FAIL", FAIL);
    read_faults("FAKE_GPU_KILL", KILL);
    read_faults("FAKE_GPU_DELAY_US", DELAY);
    fake_faults_armed = fault_count > 0;
}

static int apply(struct fault *fault) {
    unsigned long call = atomic_fetch_add(&fault->calls, 1) + 1;
    bool hit = fault->first == 0 || call == (unsigned long)fault->first;
    if (fault->kind == DELAY) {
        usleep((useconds_t)fault->first);
    } else if (fault->kind == KILL && hit) {
        kill(getpid(), SIGKILL);
    } else if (fault->kind == FAIL && hit) {
        return (int)fault->second;
    }
    return 0;
}

int fake_fault(const char *function) {
    for (int i = 0; i < fault_count; i++) {
        if (strcmp(faults[i].function, function) == 0) {
            int code = apply(&faults[i]);
            if (code != 0) {
                return code;
            }
        }
    }
    return 0;
}

uint64_t fake_calls(const char *function) {
    uint64_t calls = 0;
    for (int i = 0; i < fault_count; i++) {
        calls += strcmp(faults[i].function, function) == 0 ? atomic_load(&faults[i].calls) : 0;
    }
    return calls;
}
