# cython: language_level=3
"""send_many: encodes Python sequences into claimed batches, in one Cython frame for all records. It holds the GIL."""

from libc.stdint cimport int32_t

from kafkabuf.append._bulk cimport BulkAppend


cdef class SequenceWalker:
    cdef BulkAppend bulk
    # One element for each record; None if the argument was left out.
    cdef tuple values, keys, headers, wanted_partitions, timestamps
    cdef object topic_name          # the topic argument; interceptors may send a record to another topic
    cdef object interceptors        # interceptors.Interceptors, or None
    cdef object acknowledgement     # the interceptors' callback for the present record

    cdef int append_all(self) except -1
    # Append the record of `row`. It is held until it is in a batch: the walker reads and calls the user's objects once.
    cdef int append_next(self) except -1
    cdef int append_intercepted(self, object record) except -1
    # For the record that was appended last, to a batch that is still claimed.
    cdef int add_callback(self, object callback) except -1
    # Both return whether the record was appended; False: it was left out as too large.
    cdef bint append_prepared(
        self, object value, object key, object headers, object partition, object timestamp) except -1
    # For a record whose schema the producer does not know.
    cdef int await_schemas(self, object key, object value) except -1
    cdef bint append_held(self, int32_t wanted) except -1
    # The number of a partition that exists.
    cdef int32_t wanted_partition(self, object partition) except -2
