/* A lock of one byte, for critical sections of some dozen instructions that never block.

   A thread that finds the lock held pauses, each time twice as long as before. So the holder can take the lock several
   times in a row while its cache lines are close. After the longest pause the thread yields the processor, in case the
   holder was preempted. To take a free lock costs one atomic exchange; a pthread mutex costs two exchanges
   and two calls. */

#ifndef KAFKABUF_SPIN_H
#define KAFKABUF_SPIN_H

#include <sched.h>
#include <stdint.h>

enum { KB_SPIN_LONGEST_PAUSE = 256 };

typedef struct {
    uint8_t held;
} kb_spin;

static inline void kb_spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static __attribute__((noinline, unused)) void kb_spin_wait(kb_spin *lock)
{
    unsigned pause = 1, i;
    do {
        if (pause > KB_SPIN_LONGEST_PAUSE) {
            sched_yield();
        } else {
            for (i = 0; i < pause; i++)
                kb_spin_pause();
            pause *= 2;
        }
    } while (__atomic_load_n(&lock->held, __ATOMIC_RELAXED) || __atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE));
}

static inline void kb_spin_lock(kb_spin *lock)
{
    if (__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE))
        kb_spin_wait(lock);
}

static inline void kb_spin_unlock(kb_spin *lock)
{
    __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE);
}

#endif
