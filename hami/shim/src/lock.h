/*
 * A mutex for threads of one process: one futex word, no dependency on which C library holds pthread_mutex_lock (before
 * glibc 2.34 the symbol in libc.so does nothing unless libpthread is loaded, spec/shim.md 1.2). All zero means
 * unlocked, so a page that the kernel wipes in a fork child holds unlocked locks.
 */
#ifndef HAMI_SHIM_LOCK_H
#define HAMI_SHIM_LOCK_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
    _Atomic uint32_t word; /* 0 free, 1 held, 2 held and somebody waits */
} local_lock_t;

static inline void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline void local_lock_slow(local_lock_t *lock) {
    for (int i = 0; i < 64; i++) {
        uint32_t expected = 0;
        if (atomic_load_explicit(&lock->word, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_strong_explicit(&lock->word, &expected, 1, memory_order_acquire,
                                                    memory_order_relaxed)) {
            return;
        }
        cpu_relax();
    }
    while (atomic_exchange_explicit(&lock->word, 2, memory_order_acquire) != 0) {
        syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
    }
}

static inline void local_lock(local_lock_t *lock) {
    uint32_t expected = 0;
    if (!atomic_compare_exchange_strong_explicit(&lock->word, &expected, 1, memory_order_acquire,
                                                 memory_order_relaxed)) {
        local_lock_slow(lock);
    }
}

static inline void local_unlock(local_lock_t *lock) {
    if (atomic_exchange_explicit(&lock->word, 0, memory_order_release) == 2) {
        syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

#endif
