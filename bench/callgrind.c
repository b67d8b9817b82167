/* bench/callgrind.py preloads this library into the process that it counts. The library marks the begin and the end of
 * a kernel. It stops the clock, so that no count depends on the time of the run. */
#include <time.h>

#include <valgrind/callgrind.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    (void)clock;
    now->tv_sec = 1600000000;
    now->tv_nsec = 0;
    return 0;
}

/* Callgrind instruments from the first kernel on, and collects only within kernels. (Zeroing the counts at the begin of
 * a kernel is not enough: callgrind 3.19 keeps the counts of earlier calls through a procedure linkage table.) */
void kernel_begins(void) {
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_TOGGLE_COLLECT;
}

void kernel_ends(const char *name) {
    CALLGRIND_TOGGLE_COLLECT;
    CALLGRIND_DUMP_STATS_AT(name);
}
