# cython: language_level=3
"""Avro's binary encoding of Python objects; the layout is that of _columns.pxd. objects.py makes the parts."""

from libc.stdint cimport int64_t

from kafkabuf.formats.avro._object_unions cimport AvroObjectUnions
from kafkabuf.formats.rows._object_writer cimport Part, Writer


cdef class ObjectEncoder(AvroObjectUnions):
    """Records, arrays and maps, and the whole."""

    cdef int write_other(self, Writer* w, const Part* part, object value) except -1
    cdef int write_nested(self, Writer* w, const Part* part, object value) except -1
    cdef int write_parts(self, Writer* w, const Part* part, object value) except -1
    cdef int write_dict_record(self, Writer* w, const Part* part, dict value) except -1
    cdef int write_mapping_record(self, Writer* w, const Part* part, object value) except -1
    cdef int write_attributes(self, Writer* w, const Part* part, object value) except -1
    cdef int write_default(self, Writer* w, const Part* part, int64_t field) except -1
    cdef int64_t begin_items(self, Writer* w, object value) except -1
    cdef int write_sequence(self, Writer* w, const Part* part, object value) except -1
    cdef int write_dict_map(self, Writer* w, const Part* part, dict value) except -1
    cdef int write_mapping(self, Writer* w, const Part* part, object value) except -1
    cdef int write_pair(self, Writer* w, const Part* part, object key, object value) except -1
