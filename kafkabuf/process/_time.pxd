# cython: language_level=3
"""The clocks of `time.monotonic` and `time.time`, read in C: a turn of the Sender and send() read them often."""

from libc.stdint cimport int64_t


cdef extern from "process/_platform.h" nogil:
    double kb_monotonic() noexcept      # seconds


cdef extern from "process/_milliseconds.h":
    # A module that asks for the time calls kb_time_ms_init once, when Python imports the module.
    void kb_time_ms_init() noexcept
    int64_t kb_time_ms() noexcept       # ms since the epoch
