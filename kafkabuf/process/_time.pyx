# cython: language_level=3
"""The machine's clocks, read in C, for Python code.

Programs patch the module `time`: tests freeze it, and libraries of greenlets replace its `sleep`. C code reads the real
clocks all the same. Two parts of one producer must not have two opinions of the time, so Python code reads them here.
"""

from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

kb_time_ms_init()


def monotonic():
    """The seconds of the unpatched `time.monotonic`."""
    return kb_monotonic()


def time_ns():
    """The wall clock in nanoseconds since 1970."""
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec


def time_ms():
    """The wall clock in milliseconds since 1970."""
    return kb_time_ms()
