/* Kills a process after a chosen number of single instructions, again and again with larger numbers, and looks each
 * time whether another process gets the whole share within a second.
 *
 *   work   killed inside an allocation and a free, beside a living member
 *   join   killed inside its first CUDA calls, beside a living member
 *   first  the same with nobody else there: the next process finds what the killed one left of the region
 *
 * usage: kill_steps work|join|first FIRST STRIDE LAST SHARE_MIB */
#include "program.h"

#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOT_ALLOWED 77 /* exit status where the machine lets nobody trace */

struct checker {
    pid_t pid;
    int ask;
    int answer;
};

static void work(void) {
    CUdeviceptr pointer;
    if (cuMemAlloc_v2(&pointer, 8 * MIB) == CUDA_SUCCESS) {
        cuMemFree_v2(pointer);
    }
}

static void prepare(void) {
    char *none[] = {"kill_steps", NULL};
    start(1, none);
}

static void victim(bool join) {
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) {
        _exit(NOT_ALLOWED);
    }
    if (join) {
        int version;
        cuDriverGetVersion(&version); /* the driver's own start-up is not what we step through */
    } else {
        prepare();
        work(); /* the first call loads and maps what later ones find */
    }
    raise(SIGSTOP);
    if (join) {
        prepare();
    } else {
        work();
    }
    raise(SIGSTOP);
    _exit(0);
}

/* False when the victim came to the end of its work first. */
static bool step(pid_t pid, long count) {
    for (long i = 0; i < count; i++) {
        int status;
        ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL);
        if (waitpid(pid, &status, 0) < 0 || !WIFSTOPPED(status) || WSTOPSIG(status) == SIGSTOP) {
            return false;
        }
    }
    return true;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void check_on_request(int ask, int answer, size_t share) {
    char byte;
    prepare();
    if (write(answer, "r", 1) != 1) {
        _exit(1);
    }
    while (read(ask, &byte, 1) == 1) {
        CUdeviceptr all;
        CUresult result = cuMemAlloc_v2(&all, share);
        if (result == CUDA_SUCCESS) {
            cuMemFree_v2(all);
        }
        byte = (char)result;
        if (write(answer, &byte, 1) != 1) {
            break;
        }
    }
    _exit(0);
}

static struct checker start_checker(size_t share) {
    int ask[2];
    int answer[2];
    if (pipe(ask) != 0 || pipe(answer) != 0) {
        exit(1);
    }
    struct checker checker = {.pid = fork(), .ask = ask[1], .answer = answer[0]};
    if (checker.pid == 0) {
        close(ask[1]);
        close(answer[0]);
        check_on_request(ask[0], answer[1], share);
    }
    close(ask[0]);
    close(answer[1]);
    char ready;
    if (read(checker.answer, &ready, 1) != 1) {
        printf("the checker could not start\n");
        exit(1);
    }
    return checker;
}

static void stop_checker(struct checker *checker) {
    close(checker->ask);
    close(checker->answer);
    waitpid(checker->pid, NULL, 0);
}

static void check(const struct checker *checker, long count, double started) {
    char result = -1;
    if (write(checker->ask, "?", 1) != 1 || read(checker->answer, &result, 1) != 1) {
        result = -1;
    }
    double took = seconds() - started;
    if (result != CUDA_SUCCESS || took > 1) {
        printf("after %ld steps: %d in %.3f s\n", count, result, took);
        exit(1);
    }
}

static bool kill_after(long count, bool join) {
    pid_t pid = fork();
    if (pid == 0) {
        victim(join);
    }
    int status;
    waitpid(pid, &status, 0);
    if (WIFEXITED(status)) {
        exit(WEXITSTATUS(status));
    }
    bool killed = step(pid, count);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return killed;
}

int main(int argc, char **argv) {
    if (argc != 6) {
        return 64;
    }
    bool first = strcmp(argv[1], "first") == 0;
    bool join = first || strcmp(argv[1], "join") == 0;
    size_t share = strtoull(argv[5], NULL, 10) * MIB;
    long rounds = 0;
    bool complete = false;
    struct checker checker = {0};
    if (!first) {
        checker = start_checker(share);
    }
    for (long count = atol(argv[2]); count <= atol(argv[4]) && !complete; count += atol(argv[3])) {
        complete = !kill_after(count, join);
        double started = seconds();
        if (first) {
            checker = start_checker(share);
        }
        check(&checker, count, started);
        if (first) {
            stop_checker(&checker);
        }
        rounds++;
    }
    printf("{\"rounds\": %ld, \"complete\": %s}\n", rounds, complete ? "true" : "false");
    return 0;
}
