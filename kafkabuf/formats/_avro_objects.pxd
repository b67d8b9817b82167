# cython: language_level=3
"""Avro's binary encoding of Python objects; the layout is that of _avro.pxd. avro_objects.py makes the parts.

Any object may run Python when it is read: the code may change the list or dict that is read, encode another object, or
close the producer. So no step relies on what an earlier step saw, each call has a Writer of its own, and the writer
holds a reference to what it reads.
"""

from libc.stdint cimport int64_t

from kafkabuf.formats._avro_object_unions cimport AvroObjectUnions
from kafkabuf.formats._avro_object_writer cimport Part, Writer


cdef class ObjectEncoder(AvroObjectUnions):
    """Records, arrays and maps, and the whole."""

    cdef int write_other(self, Writer* w, const Part* part, object value) except -1
    cdef int write_nested(self, Writer* w, const Part* part, object value) except -1
    cdef int write_parts(self, Writer* w, const Part* part, object value) except -1
    cdef int write_dict_record(self, Writer* w, const Part* part, dict value) except -1
    cdef int write_mapping_record(self, Writer* w, const Part* part, object value) except -1
    cdef int check_extra(self, Writer* w, const Part* part, object value, int64_t found) except -1
    cdef int write_attributes(self, Writer* w, const Part* part, object value) except -1
    cdef int write_default(self, Writer* w, const Part* part, int64_t field) except -1
    cdef int check_class(self, Writer* w, const Part* part, object cls) except -1
    cdef int begin_items(self, Writer* w, const Part* part, object value, int64_t count) except -1
    cdef int write_sequence(self, Writer* w, const Part* part, object value) except -1
    cdef int write_dict_map(self, Writer* w, const Part* part, dict value) except -1
    cdef int write_mapping(self, Writer* w, const Part* part, object value) except -1
    cdef int write_pair(self, Writer* w, const Part* part, object key, object value) except -1


cdef class ObjectSerializer:
    """Calls the encoder with a prefix."""

    cdef ObjectEncoder encoder
    cdef bytes prefix
