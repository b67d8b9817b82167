# cython: language_level=3
from kafkabuf.network._socket cimport Spans


cdef class Frame:
    """One request as a list of spans, in wire order, its 4-byte length included.

    Spans are not copied: whoever adds one keeps it alive and unchanged until the frame is `written` or its connection
    is closed. `own` ties the lifetime of an object to the frame.
    """
    cdef Spans spans
    cdef list owners
    cdef bint queued                # handed to a connection: no more spans, no second connection
    cdef readonly Py_ssize_t nbytes

    cdef int add(self, const void* data, size_t nbytes) except -1
    cpdef int add_bytes(self, bytes data) except -1
    cpdef int own(self, object owner) except -1
