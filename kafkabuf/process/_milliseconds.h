/* The time of day in ms, for a caller that asks a million times a second.

   A call of clock_gettime costs as much as two other steps of send(). The CPU's counter costs a third of it, and says how
   long ago the last call was: while the millisecond of that call cannot be over yet, the answer stands. The counter's
   frequency is not needed. It is at least half a tick in a nanosecond on every CPU whose counter never stops, so that n
   ticks are at most 2 n nanoseconds. A counter that jumps back looks like a long time, and the clock is asked. A step of
   the clock is seen at the end of the millisecond.

   The caller holds the GIL, which guards the static variables. Without a GIL nobody writes them, and each call asks the
   clock, as it does without such a counter. */

#ifndef KAFKABUF_MILLISECONDS_H
#define KAFKABUF_MILLISECONDS_H

#include <Python.h>
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__) && !defined(Py_GIL_DISABLED)
#define KB_COUNTER 1
#include <cpuid.h>
/* <x86intrin.h> has __rdtsc and thousands of others, which take the compiler a third of a second in each extension. */
#define kb_rdtsc __builtin_ia32_rdtsc
#else
#define KB_COUNTER 0
#endif

#if KB_COUNTER
static struct {
    int64_t ms;      /* the last answer */
    uint64_t asked;  /* the counter before the clock was asked */
    uint64_t ticks;  /* the answer stands for so many ticks; always 0 without a counter that never stops */
} kb_last_ms;

static int kb_steady_counter;
#endif

static inline void kb_time_ms_init(void)
{
#if KB_COUNTER
    unsigned a, b, c, d;
    kb_steady_counter = __get_cpuid(0x80000007, &a, &b, &c, &d) && (d >> 8 & 1); /* "invariant TSC" */
#endif
}

static int64_t kb_ask_clock(void)
{
    struct timespec now;
    int64_t ms;
#if KB_COUNTER
    /* Before the clock: this thread may lose the CPU in between, and the answer must not stand for longer then. */
    uint64_t before = kb_rdtsc();
#endif
    clock_gettime(CLOCK_REALTIME, &now);
    ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
#if KB_COUNTER
    if (kb_steady_counter) {
        kb_last_ms.ms = ms;
        kb_last_ms.ticks = (uint64_t)(1000000 - now.tv_nsec % 1000000) / 2;
        kb_last_ms.asked = before;
    }
#endif
    return ms;
}

static inline int64_t kb_time_ms(void)
{
#if KB_COUNTER
    if (kb_rdtsc() - kb_last_ms.asked < kb_last_ms.ticks)
        return kb_last_ms.ms;
#endif
    return kb_ask_clock();
}

#endif
