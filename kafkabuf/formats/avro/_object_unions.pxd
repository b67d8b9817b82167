# cython: language_level=3
"""Which branch of an Avro union takes a Python object, and the attempts at it."""

from libc.stdint cimport int64_t

from kafkabuf.formats.rows._object_leaves cimport ObjectLeaves
from kafkabuf.formats.rows._object_writer cimport Part, Writer


cdef class AvroObjectUnions(ObjectLeaves):
    cdef int write_branch(self, Writer* w, const Part* part, int64_t branch, object value) except -1
    cdef int write_union(self, Writer* w, const Part* part, object value) except -1
    cdef int write_scored(self, Writer* w, const Part* part, object value, int64_t* scores, int64_t fits) except -1
    cdef int64_t score_branches(self, const Part* part, object value, int64_t* scores) except -1
    cdef int64_t hinted(self, const Part* part, object value) except -2
    cdef int64_t score(self, const Part* part, object value) except -2
    cdef int64_t score_record(self, const Part* part, object value) except -2
