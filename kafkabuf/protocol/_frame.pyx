# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A request as spans: protocol bytes, and between them the records in their slabs. No record is copied."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset
from posix.uio cimport iovec


cdef class Frame:
    """One request as a list of spans, in wire order. The .pxd says who keeps the bytes alive."""

    def __cinit__(self):
        memset(&self.spans, 0, sizeof(Spans))
        self.spans.response.largest = LARGEST_RESPONSE
        self.owners = []

    def __dealloc__(self):
        free(self.spans.items)

    cdef int add(self, const void* data, size_t nbytes) except -1:
        cdef Spans* spans = &self.spans
        cdef Py_ssize_t room
        cdef iovec* items
        if self.queued:
            raise ValueError("a connection has the frame: add spans before it is sent")
        if nbytes == 0:
            return 0
        if spans.count == spans.room:
            room = 2 * spans.room if spans.room else 8
            items = <iovec*> realloc(spans.items, room * sizeof(iovec))
            if items == NULL:
                raise MemoryError(f"no memory for {room} spans of a request")
            spans.items = items
            spans.room = room
        spans.items[spans.count].iov_base = <void*> data
        spans.items[spans.count].iov_len = nbytes
        spans.count += 1
        self.nbytes += <Py_ssize_t> nbytes
        return 0

    cpdef int add_bytes(self, bytes data) except -1:
        if data is None:
            raise TypeError("a frame takes bytes, found None")
        self.owners.append(data)
        return self.add(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cpdef int own(self, object owner) except -1:
        self.owners.append(owner)
        return 0

    cdef int require_unsent(self) except -1:
        # The connection has copied the expected response, and removes it again in take_back.
        if self.queued:
            raise ValueError("a connection has the frame: set its attributes before it is sent")
        return 0

    @property
    def notify(self):
        return self.spans.notify

    @notify.setter
    def notify(self, bint value):
        self.require_unsent()
        self.spans.notify = value

    @property
    def correlation_id(self):
        return self.spans.response.correlation_id

    @correlation_id.setter
    def correlation_id(self, int value):
        self.require_unsent()
        self.spans.response.correlation_id = value

    @property
    def largest_response(self):
        return self.spans.response.largest

    @largest_response.setter
    def largest_response(self, Py_ssize_t value):
        self.require_unsent()
        self.spans.response.largest = value

    @property
    def untouched(self):
        cdef Py_ssize_t i
        cdef size_t left = 0
        for i in range(self.spans.done, self.spans.count):
            left += self.spans.items[i].iov_len
        return <Py_ssize_t> left == self.nbytes

    @property
    def written(self):
        return self.queued and self.spans.done == self.spans.count and not self.spans.ciphertext_waits

    def to_bytes(self):
        cdef Py_ssize_t i, at = 0
        cdef bytes copy
        cdef char* target
        if self.queued:
            raise ValueError("a connection has the frame: copy it before it is sent")
        copy = PyBytes_FromStringAndSize(NULL, self.nbytes)
        target = PyBytes_AS_STRING(copy)
        for i in range(self.spans.count):
            memcpy(target + at, self.spans.items[i].iov_base, self.spans.items[i].iov_len)
            at += <Py_ssize_t> self.spans.items[i].iov_len
        return copy
