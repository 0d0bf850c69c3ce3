/* A region file damaged while a process of the container uses it: whoever joins, counts and leaves next neither crashes
 * nor hangs, and a reader only looks. usage: fuzz_region SECONDS SEED FILE. Built with sanitizers. */
#include "account.h"
#include "member.h"
#include "region_file.h"

#include "mutate.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS_OF_A_HOLDER = 40, HANGS_AFTER_S = 20, STEPS = 40 };

static const char *path;

static bool join(vgpu_card_t *card) {
    const char *why = NULL;
    memset(card, 0, sizeof *card);
    snprintf(card->uuid, sizeof card->uuid, "GPU-%u", below(3));
    card->limit = (uint64_t)(1 + below(8)) << 30;
    card->card = (int)below(3) - 1;
    bool joined = vgpu_member_join(path, card, 1, 0, &why);
    MUST(joined || why != NULL);
    return joined && card->index >= 0;
}

static void use(int card) {
    for (int i = 0; i < STEPS; i++) {
        uint64_t bytes = (uint64_t)below(4096) << 20;
        if (vgpu_account_reserve(card, bytes, VGPU_USE_DATA)) {
            vgpu_account_used(card);
            vgpu_account_return(card, bytes, VGPU_USE_DATA);
        }
        vgpu_account_limit(card);
    }
    vgpu_member_sweep();
}

static void work(void) {
    vgpu_card_t card;
    const vgpu_region_t *seen = vgpu_region_view(path);
    if (seen != NULL) {
        munmap((void *)(uintptr_t)seen, sizeof *seen);
    }
    if (join(&card)) {
        use(card.index);
        vgpu_member_leave();
    }
}

/* In a process of its own, which has to end by itself. */
static void in_child(void (*what)(void)) {
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        alarm(HANGS_AFTER_S);
        what();
        fflush(NULL);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    MUST(!WIFSIGNALED(status));
    MUST(WEXITSTATUS(status) == 0);
}

static pid_t start_holder(void) {
    int ready[2];
    MUST(pipe(ready) == 0);
    pid_t holder = fork();
    MUST(holder >= 0);
    if (holder == 0) {
        vgpu_card_t card;
        bool joined = join(&card);
        if (write(ready[1], joined ? "j" : "n", 1) == 1) {
            for (;;) {
                pause();
            }
        }
        _exit(1);
    }
    char answer;
    MUST(read(ready[0], &answer, 1) == 1 && answer == 'j');
    close(ready[0]);
    close(ready[1]);
    return holder;
}

/* Any place but a card lock's owner, which is put to owners that cannot exist: a lock that a living process is said to
 * hold is waited for, and has to be. */
static void damage(int fd) {
    size_t locks = offsetof(vgpu_region_t, tail) + offsetof(vgpu_tail_t, lock);
    size_t places[] = {0, offsetof(vgpu_region_t, procs), offsetof(vgpu_region_t, proc_count), VGPU_TAIL_OFFSET,
                       offsetof(vgpu_region_t, tail.slot_in_use)};
    for (uint32_t n = 1 + below(12); n > 0; n--) {
        size_t at = places[below(5)] + (below(2) != 0 ? below(128) : below(2000)) / 4 * 4;
        uint64_t value = odd_number();
        size_t size = below(2) != 0 ? 4 : 8;
        if (at + size > locks && at < locks + VGPU_MAX_DEVICES * sizeof(vgpu_lock_t)) {
            at = locks + below(VGPU_MAX_DEVICES) * sizeof(vgpu_lock_t);
            value = VGPU_MAX_SLOTS + 1 + below(1U << 30);
            size = 4;
        }
        MUST(pwrite(fd, &value, size, (off_t)at) == (ssize_t)size);
    }
}

int main(int argc, char **argv) {
    MUST(argc > 3);
    time_t end = now_s() + atoi(argv[1]);
    random_state = strtoull(argv[2], NULL, 10);
    path = argv[3];
    while (now_s() < end) {
        pid_t holder = start_holder();
        int fd = open(path, O_RDWR | O_CLOEXEC);
        MUST(fd >= 0);
        for (int i = 0; i < ROUNDS_OF_A_HOLDER; i++, rounds++) {
            damage(fd);
            in_child(work);
        }
        close(fd);
        MUST(kill(holder, SIGKILL) == 0 && waitpid(holder, NULL, 0) == holder);
        in_child(work); /* nobody is left: the region starts afresh */
    }
    printf("well %llu\n", (unsigned long long)rounds);
    return 0;
}
