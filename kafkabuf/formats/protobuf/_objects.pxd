# cython: language_level=3
"""Protobuf's encoding of Python objects; the layout is that of _columns.pxd. objects.py makes the parts.

A part is a message (KIND_RECORD), whose parts are its fields, or a field, which writes its tag, too. The parts of a
field that is repeated, a map or a message are its item, its key and value, or the message.
"""

from libc.stdint cimport int64_t

from kafkabuf.formats.rows._object_leaves cimport ObjectLeaves
from kafkabuf.formats.rows._object_writer cimport Part, Writer


cdef class ProtobufObjectEncoder(ObjectLeaves):
    """Encodes objects as one message. `refuses_missing`: each field needs a value or None."""

    cdef bint refuses_missing

    cdef int write_leaf_field(self, Writer* w, const Part* part, object value) except -1
    cdef int write_value(self, Writer* w, const Part* part, object value) except -1
    cdef int write_integer(self, Writer* w, const Part* part, object value) except -1
    cdef int write_symbol(self, Writer* w, const Part* part, object value) except -1
    cdef int write_message_field(self, Writer* w, const Part* part, object value) except -1
    cdef int write_special(self, Writer* w, const Part* part, object value) except -1
    cdef int write_instant(self, Writer* w, const Part* part, object value) except -1
    cdef int write_span(self, Writer* w, const Part* part, object value) except -1
    cdef int write_wrapped(self, Writer* w, const Part* part, object value) except -1
    cdef int write_message(self, Writer* w, const Part* part, object value) except -1
    cdef int write_dynamic(self, Writer* w, const Part* part, object value) except -1
    cdef int write_any(self, Writer* w, const Part* part, object value) except -1
    cdef int field_of_any(self, object value) except -2
    cdef int write_made(self, Writer* w, const Part* part, object value) except -1
    cdef int write_fields(self, Writer* w, const Part* part, object value, int kind) except -1
    cdef object item_of(self, Writer* w, const Part* part, object value, int kind, int64_t field)
    cdef int check_oneof(self, Writer* w, const Part* part, int64_t field, dict chosen) except -1
    cdef int check_names(self, Writer* w, const Part* part, object value, int64_t fields) except -1
    cdef int write_repeated(self, Writer* w, const Part* part, object value) except -1
    cdef int write_map(self, Writer* w, const Part* part, object value) except -1
    cdef object map_key(self, Writer* w, const Part* part, object key)
    cdef int write_entry(self, Writer* w, const Part* part, object key, object value) except -1
    cdef int enter(self, Writer* w, const Part* part, int messages) except -1
    cdef int check_depth(self, Writer* w, int messages) except -1
    cdef int end_length(self, Writer* w, int64_t begin) except -1
