# cython: language_level=3
"""Avro's binary encoding of Arrow rows, without the GIL.

    null: nothing | boolean: a byte | int, long: zig-zag varint | float, double: little-endian IEEE 754
    bytes, string: size long | bytes | fixed: bytes | enum: number of the symbol, int
    union: number of the branch, long | value
    record: its fields, one after the other
    array: count long | items | 0 ; map: count long | (key string | value)... | 0 ; an empty one is 0 alone
"""

from kafkabuf.formats.rows._encoder cimport RowEncoder


cdef class AvroEncoder(RowEncoder):
    pass
