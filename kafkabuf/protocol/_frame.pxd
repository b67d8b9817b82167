# cython: language_level=3
"""A request as spans, and what the client knows beforehand of its response."""

from posix.uio cimport iovec


cdef enum:
    LARGEST_RESPONSE = 100000000  # default of ExpectedResponse.largest


# True: the response reports no error. It has `size` bytes without the length prefix, and responds to a request of this
# version for this many partitions.
ctypedef bint (*Judge)(const unsigned char* response, Py_ssize_t size, int version, int partitions) noexcept nogil


cdef struct ExpectedResponse:
    # What the client knows beforehand of the response to one request.
    int correlation_id
    int version
    int partitions
    Py_ssize_t largest      # a response with more bytes fails the connection
    Judge judge             # NULL: no response counts as an error


cdef struct Spans:
    # The bytes of one Frame as the socket sees them. The poll call reads them without the GIL; only the thread that
    # owns the Poller changes them.
    iovec* items
    Py_ssize_t count        # how many items there are
    Py_ssize_t room         # how many items fit
    Py_ssize_t done         # items written in full; a partly written item starts at its first unwritten byte
    bint notify             # the request gets no response (acks=0): the poll call reports that its last byte is written
    ExpectedResponse response         # the expected response, unless `notify`
    bint ciphertext_waits   # the frame goes over TLS, and its last byte of ciphertext is not written yet
    Spans* following        # the next frame of the same connection


cdef class Frame:
    """One request as a list of spans, in wire order, its 4-byte length included.

    Spans are not copied: the caller keeps the bytes of a span alive and unchanged until the frame is `written` or its
    connection is closed. `own` ties the lifetime of an object to the frame.
    """
    cdef Spans spans
    cdef list owners                # objects that live as long as the frame
    cdef bint queued                # a connection has the frame: neither spans nor the expected response may change
    cdef readonly Py_ssize_t nbytes  # of all spans

    cdef int add(self, const void* data, size_t nbytes) except -1
    cpdef int add_bytes(self, bytes data) except -1
    cpdef int own(self, object owner) except -1
    cdef int require_unsent(self) except -1
