# cython: language_level=3
"""Encoding without a producer: rows of Arrow data become a list of bytes."""

from libc.stdint cimport int64_t

from kafkabuf.formats.rows._encoder cimport RowEncoder


cdef class Encoding:
    """One call of encode(): the encoder is made for the schema of the first array."""
    cdef object format
    cdef RowEncoder encoder
    cdef list values


cdef class EncodedRows:
    """One call of encode_batch(): what the rows of one array became."""
    cdef RowEncoder encoder
    cdef object offsets             # int64 by row, and one more: the ends of the rows in `encoded`
    cdef object valid               # uint8 by row: 0 for Kafka's null, and for a row that cannot be encoded
    cdef bytearray encoded
    cdef dict errors                # by row
