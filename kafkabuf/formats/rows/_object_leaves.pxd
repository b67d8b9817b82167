# cython: language_level=3
"""Numbers, times, text, bytes and enums: what a value without parts may be in Python."""

from libc.stdint cimport int64_t

from kafkabuf.formats.rows._object_writer cimport ObjectWriter, Part, Writer


cdef class ObjectLeaves(ObjectWriter):
    """`write_leaf` returns 0 where the value's type does not fit."""

    cdef int write_leaf(self, Writer* w, const Part* part, object value) except -1
    cdef int write_rare(self, Writer* w, const Part* part, object value) except -1
    cdef int write_whole(self, Writer* w, const Part* part, object value) except -1
    cdef int write_real(self, Writer* w, const Part* part, object value, double real) except -1
    cdef int write_whole_real(self, Writer* w, const Part* part, object value) except -1
    cdef int write_decimal(self, Writer* w, const Part* part, object value) except -1
    cdef int write_date(self, Writer* w, const Part* part, object value) except -1
    cdef int write_time(self, Writer* w, const Part* part, object value) except -1
    cdef int write_timestamp(self, Writer* w, const Part* part, object value) except -1
    cdef int64_t nanos_of(self, Writer* w, const Part* part, object value) except -1
    cdef int write_duration(self, Writer* w, const Part* part, object value) except -1
    cdef int write_bytes(self, Writer* w, const Part* part, object value) except -1
    cdef int write_uuid(self, Writer* w, const Part* part, object value) except -1
    cdef int write_enum(self, Writer* w, const Part* part, object value) except -1


cdef object symbol_number(const Part* part, object value)
cdef int64_t symbol_of(const Part* part, object value) except -2
cdef object plain_value(object value)
cdef object bytes_of(object value, const char** data, int64_t* size)
cdef int64_t micros_since_1970(object value) except? -1
cdef int64_t micros_in(object delta) except? -1
cdef int64_t micros_of_day(object value) except? -1
