"""Batches in memory. Thread: the event loop."""

from libc.stdint cimport int64_t


cdef class MemoryCore:
    # memory.py says what each field means.
    cdef public int64_t start_offset
    cdef public int64_t end_offset
    cdef public list _batches
    cdef public list _positions
    cdef public Py_ssize_t _first
    cdef public int64_t _appended
