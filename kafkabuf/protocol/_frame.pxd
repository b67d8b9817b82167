# cython: language_level=3
"""A request on its way out, and what is known beforehand of its answer."""

from posix.uio cimport iovec


cdef enum:
    LARGEST_ANSWER = 100000000  # to a frame that does not say what its answer may be


# Whether a response, `size` bytes without their length, to a request of that version and for so many partitions tells
# of no trouble.
ctypedef bint (*Judge)(const unsigned char* response, Py_ssize_t size, int version, int partitions) noexcept nogil


cdef struct Answer:
    # What is known beforehand of the one answer to a request.
    int correlation_id
    int version
    int partitions
    Py_ssize_t largest      # more bytes than that nobody has asked for
    Judge judge             # NULL: any will do


cdef struct Spans:
    # The bytes of one Frame as the socket sees them. Read without the GIL by the poll call, written only by the thread
    # that owns the Poller.
    iovec* items
    Py_ssize_t count
    Py_ssize_t room
    Py_ssize_t done         # items written entirely; a partly written item has been moved past its written bytes
    bint notify             # no response will tell the end (acks=0): the last byte going out is news of its own
    Answer answer           # that it will get, unless `notify`
    bint sealed             # it goes out encrypted, and the last byte of that is not out yet
    Spans* following        # the next frame of the same connection


cdef class Frame:
    """One request as a list of spans, in wire order, its 4-byte length included.

    Spans are not copied: whoever adds one keeps it alive and unchanged until the frame is `written` or its connection
    is closed. `own` ties the lifetime of an object to the frame.
    """
    cdef Spans spans
    cdef list owners
    cdef bint queued                # handed to a connection: no more spans, no second connection, no other answer
    cdef readonly Py_ssize_t nbytes

    cdef int add(self, const void* data, size_t nbytes) except -1
    cpdef int add_bytes(self, bytes data) except -1
    cpdef int own(self, object owner) except -1
    cdef int require_unsent(self) except -1
