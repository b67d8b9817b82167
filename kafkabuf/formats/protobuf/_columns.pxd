# cython: language_level=3
"""Protobuf's encoding of Arrow rows, without the GIL.

    message: (tag | value)... in ascending number of the fields; a field that is not set is absent
    tag: varint of number << 3 | wire type: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes
    int32, int64, uint32, uint64, enum, bool: varint of 64 bits in two's complement | sint32, sint64: zig-zag varint
    fixed32, sfixed32, float: 4 bytes little-endian | fixed64, sfixed64, double: 8 bytes
    string, bytes, nested message: length varint | bytes
    repeated: (tag | value)... ; packed: tag | length varint | values
    map: repeated messages of key=1 and value=2, which are both there

Without presence a zero is absent. A length comes before the bytes that it counts: one byte is kept free for it, and the
bytes move if the length needs more. A first pass that only counts would read each value and check each text twice.

A step that has no column (a wrapper such as Int32Value, or the check of a oneof) belongs to its parent's row: the
binder goes on with the next step, which reads a column of the same parent.
"""

from kafkabuf.formats.rows._encoder cimport RowEncoder


cdef class ProtobufEncoder(RowEncoder):
    pass
