/* The machine-wide book: bytes held on each card by each process, in one file mapped by all of them. A robust lock
 * guards it; a process killed inside leaves at most its own counter changed, and the totals are summed again. */
#include "card.h"
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BOOK_MAGIC 0x46414b45u

struct holder {
    int32_t pid;
    uint32_t unused;
    uint64_t start_time;
    uint64_t bytes[FAKE_MAX_CARDS];
};

struct book {
    uint32_t magic;
    int32_t holders_used;
    pthread_mutex_t lock;
    uint64_t total[FAKE_MAX_CARDS];
    struct holder holders[FAKE_MAX_PROCESSES];
};

static struct book *book;
static struct holder *mine;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint64_t start_time_of(int pid) {
    char path[300];
    char text[512];
    snprintf(path, sizeof path, "%s/%d/stat", fake_config()->proc_path, pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0) {
        return 0;
    }
    text[length] = '\0';
    char *at = strrchr(text, ')');
    char state = 'X';
    unsigned long long start = 0;
    if (at == NULL || sscanf(at + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                             &state, &start) != 2) {
        return 0;
    }
    return state == 'Z' || state == 'X' ? 0 : start;
}

/* This process's number on the machine, also inside a pid namespace. */
static int my_pid(void) {
    char path[300];
    char text[16] = "";
    snprintf(path, sizeof path, "%s/self", fake_config()->proc_path);
    return readlink(path, text, sizeof text - 1) > 0 ? atoi(text) : getpid();
}

static void sum_again(void) {
    memset(book->total, 0, sizeof book->total);
    for (int i = 0; i < book->holders_used; i++) {
        for (int card = 0; book->holders[i].pid != 0 && card < FAKE_MAX_CARDS; card++) {
            book->total[card] += book->holders[i].bytes[card];
        }
    }
}

static void lock_book(void) {
    if (pthread_mutex_lock(&book->lock) == EOWNERDEAD) {
        sum_again();
        pthread_mutex_consistent(&book->lock);
    }
}

static void drop_dead(void) {
    for (int i = 0; i < book->holders_used; i++) {
        struct holder *holder = &book->holders[i];
        if (holder->pid != 0 && start_time_of(holder->pid) != holder->start_time) {
            holder->pid = 0;
        }
    }
    sum_again();
}

static void *map_book(int fd) {
    void *at =
        mmap(NULL, sizeof *book, PROT_READ | PROT_WRITE, fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        fprintf(stderr, "fake driver: no memory for the book\n");
        abort();
    }
    return at;
}

static void prepare_book(void) {
    if (book->magic == BOOK_MAGIC) {
        return;
    }
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&book->lock, &attributes);
    book->magic = BOOK_MAGIC;
}

static void forget_in_child(void) {
    mine = NULL;
}

static void open_book(void) {
    const struct fake_config *config = fake_config();
    int fd = -1;
    if (config->state_path[0] != '\0') {
        fd = open(config->state_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0 || flock(fd, LOCK_EX) != 0 || ftruncate(fd, sizeof *book) != 0) {
            fprintf(stderr, "fake driver: cannot open %s\n", config->state_path);
            abort();
        }
        (void)!fchmod(fd, 0666); /* processes of any user use the card; only the owner can widen the mode */
    }
    book = map_book(fd);
    prepare_book();
    if (fd >= 0) {
        flock(fd, LOCK_UN); /* the mapping keeps the open file, and with it the lock */
        close(fd);
    }
    pthread_atfork(NULL, NULL, forget_in_child);
}

/* Called with the lock held. A row of this very process that we did not write is that of the image before exec: the
 * driver closed its files, so it holds nothing any more. */
static struct holder *my_row(void) {
    if (mine != NULL) {
        return mine;
    }
    int pid = my_pid();
    for (int i = 0; i < book->holders_used; i++) {
        if (book->holders[i].pid == pid) {
            book->holders[i].pid = 0;
            sum_again();
        }
    }
    for (int sweep = 0; sweep < 2; sweep++) {
        for (int i = 0; i < FAKE_MAX_PROCESSES; i++) {
            struct holder *holder = &book->holders[i];
            if (holder->pid == 0) {
                memset(holder->bytes, 0, sizeof holder->bytes);
                holder->start_time = start_time_of(pid);
                holder->pid = pid;
                book->holders_used = i >= book->holders_used ? i + 1 : book->holders_used;
                mine = holder;
                return mine;
            }
        }
        drop_dead();
    }
    abort();
}

static void enter(void) {
    pthread_once(&once, open_book);
    lock_book();
}

static void leave(void) {
    pthread_mutex_unlock(&book->lock);
}

bool fake_take(int card, uint64_t bytes) {
    const struct fake_card *facts = &fake_config()->cards[card];
    uint64_t room = facts->memory_bytes - facts->reserved_bytes;
    enter();
    struct holder *holder = my_row();
    if (book->total[card] + bytes > room) {
        drop_dead();
    }
    bool fits = bytes <= room && book->total[card] <= room - bytes;
    if (fits) {
        holder->bytes[card] += bytes;
        book->total[card] += bytes;
    }
    leave();
    return fits;
}

void fake_give(int card, uint64_t bytes) {
    enter();
    struct holder *holder = my_row();
    if (holder->bytes[card] < bytes) {
        fprintf(stderr, "fake driver: more given back than taken\n");
        abort();
    }
    holder->bytes[card] -= bytes;
    book->total[card] -= bytes;
    leave();
}

uint64_t fake_used(int card) {
    enter();
    drop_dead();
    uint64_t used = book->total[card];
    leave();
    return used;
}

uint64_t fake_room(int card) {
    const struct fake_card *facts = &fake_config()->cards[card];
    return facts->memory_bytes - facts->reserved_bytes - fake_used(card);
}

uint64_t fake_used_by_me(int card) {
    enter();
    uint64_t used = my_row()->bytes[card];
    leave();
    return used;
}

int fake_processes(int card, struct fake_process *out, int capacity) {
    int found = 0;
    enter();
    drop_dead();
    for (int i = 0; i < book->holders_used; i++) {
        const struct holder *holder = &book->holders[i];
        if (holder->pid != 0 && holder->bytes[card] != 0) {
            if (found < capacity) {
                out[found] = (struct fake_process){.pid = holder->pid, .bytes = holder->bytes[card]};
            }
            found++;
        }
    }
    leave();
    return found;
}
