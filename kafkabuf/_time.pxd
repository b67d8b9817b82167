# cython: language_level=3
"""The clock of `time.monotonic`, read in C: a Sender's turn reads it many times."""

cdef extern from "_platform.h" nogil:
    double kb_monotonic() noexcept      # seconds
