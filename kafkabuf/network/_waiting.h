/* Atomic accesses, the clock, and a thread's wait for the change of a counter: by a futex, or in short sleeps. */
#ifndef KAFKABUF_WAITING_H
#define KAFKABUF_WAITING_H

#include <limits.h>
#include <stdint.h>
#include <time.h>

#include "../process/_platform.h"

#if KB_LINUX
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static inline uint32_t kb_exchange(uint32_t *flag, uint32_t value) {
    return __atomic_exchange_n(flag, value, __ATOMIC_SEQ_CST);
}

/* Replace `expected` by `value`. Returns whether the flag was `expected`. */
static inline int kb_replace(uint32_t *flag, uint32_t expected, uint32_t value) {
    return __atomic_compare_exchange_n(flag, &expected, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static inline uint32_t kb_load(uint32_t *flag) { return __atomic_load_n(flag, __ATOMIC_SEQ_CST); }

static inline void kb_add(uint32_t *counter, uint32_t value) {
    __atomic_fetch_add(counter, value, __ATOMIC_SEQ_CST);
}

static inline uint32_t kb_microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint32_t)now.tv_sec * 1000000u + (uint32_t)(now.tv_nsec / 1000);
}

static inline int64_t kb_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* A condition variable would need a mutex, which a fork may copy while it is held, and a clock: macOS has no monotonic
   clock for it. A sleeper needs neither, and no call wakes it. The wait is one of at most LONGEST_TURN_US. */
enum { KB_NAP_NS = 50000 };

static inline void kb_nap_until_change(uint32_t *counter, uint32_t seen, uint32_t microseconds) {
    const struct timespec nap = {0, KB_NAP_NS};
    uint32_t began = kb_microseconds();
    while (kb_load(counter) == seen && kb_microseconds() - began < microseconds) nanosleep(&nap, NULL);
}

static inline void kb_wake_nobody(uint32_t *counter) { (void)counter; }

#if KB_LINUX
static inline void kb_futex_wait(uint32_t *counter, uint32_t seen, uint32_t microseconds) {
    struct timespec timeout = {0, (long)microseconds * 1000};
    syscall(SYS_futex, counter, FUTEX_WAIT_PRIVATE, seen, &timeout, NULL, 0);
}

static inline void kb_futex_wake(uint32_t *counter) {
    syscall(SYS_futex, counter, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
#endif

#endif
