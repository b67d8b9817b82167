# cython: language_level=3
"""The machine's clocks, read in C, for Python code.

Programs patch the module `time`: tests freeze it, and libraries of greenlets replace its `sleep`. C code reads the real
clocks all the same. Two parts of one producer must not have two opinions of the time, so Python code reads them here.
"""

kb_time_ms_init()


def monotonic():
    """The seconds of the unpatched `time.monotonic`."""
    return kb_monotonic()


def time_ms():
    """The wall clock in milliseconds since 1970."""
    return kb_time_ms()
