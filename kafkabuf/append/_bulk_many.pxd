# cython: language_level=3
"""send_many: Python sequences into claimed batches, one Cython frame for all records. The GIL is held."""

from libc.stdint cimport int32_t

from kafkabuf.append._bulk cimport Walker


cdef class SequenceWalker(Walker):
    # One element a record; None where the argument was left out.
    cdef tuple values, keys, headers, wanted_partitions, timestamps
    cdef object topic_name          # the call's; interceptors may send a record elsewhere
    cdef object interceptors        # interceptors.Interceptors, or None
    cdef object acknowledgement     # their callback, the same for all records

    # The record `row` is at, held from here until it is in a batch: nothing of the user's is read or called twice.
    cdef int append_one(self) except -1
    cdef int append_intercepted(self, object record) except -1
    # Of the record that has just been appended, to a batch that is still claimed.
    cdef int add_callback(self, object callback) except -1
    # Whether it was appended, and not left out.
    cdef bint append_given(self, object value, object key, object headers, object given, object stamp) except -1
    cdef bint append_held(self, int32_t wanted) except -1
    # The number asked for, known to exist; -1 for None.
    cdef int32_t wanted_partition(self, object given) except -2
