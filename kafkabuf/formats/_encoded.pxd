# cython: language_level=3
"""Encoding without a producer: rows of Arrow data become a list of bytes."""

from libc.stdint cimport int64_t

from kafkabuf.formats._encoder cimport RowEncoder


cdef class Encoding:
    """One call of encode(): the encoder is made for the schema of the first array."""
    cdef object format
    cdef RowEncoder encoder
    cdef list values
    cdef int64_t rounds, bytes      # of bench_rows
