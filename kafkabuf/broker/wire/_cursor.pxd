"""A reading position in a frame. The frame's bytes stay where they are as long as the cursor exists."""

from libc.stdint cimport int64_t


cdef class Cursor:
    # The frame, as an object and as its bytes. Nobody else has the view: it could be released.
    cdef object view
    cdef const unsigned char* data
    cdef Py_ssize_t size

    # Where the next field begins: 0 to `size`.
    cdef readonly Py_ssize_t position
    cdef readonly bint flexible
    # The items of all arrays up to here.
    cdef Py_ssize_t items

    cdef const unsigned char* fixed(self, Py_ssize_t size) except NULL
    cdef int64_t uvarint(self) except -1
    cdef int64_t length(self, bint long_form) except? -2
    cdef Py_ssize_t field(self, bint long_form) except? -2
    cdef Py_ssize_t take(self, int64_t size) except -1
