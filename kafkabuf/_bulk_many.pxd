# cython: language_level=3
"""send_many: Python sequences into claimed batches, one Cython frame for all records. The GIL is held."""

from libc.stdint cimport int32_t

from kafkabuf._bulk cimport Walker


cdef class SequenceWalker(Walker):
    # One element a record; None where the argument was left out.
    cdef tuple values, keys, headers, wanted_partitions, timestamps

    # The record `row` is at, held from here until it is in a batch: nothing of the user's is read or called twice.
    cdef int append_one(self) except -1
    cdef int append_held(self, int32_t wanted) except -1
    # The number asked for, known to exist; -1 for None.
    cdef int32_t wanted_partition(self, object given) except -2
